"""Loading a bundle: the pair of engines that its settings ask for."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from engines.bundle import Bundle
from engines.errors import UsageError
from engines.manifest import EngineManifest
from runtime.device.host import HostDevice
from runtime.device.traced import TracedDevice
from runtime.loading.api import Pair
from runtime.loading.engines import Tell
from runtime.loading.hardware import INSTALLED, Hardware
from runtime.loading.host import LoadedPair
from runtime.loading.probing import on_stream
from runtime.loading.resident import ResidentPair
from runtime.memory_plan import MemoryPlan, plan_memory, require_room
from runtime.placement import Placement
from runtime.scheduler import DRAFT_TIMEOUT_S, OnRound
from runtime.spec.drafter import Drafter
from runtime.trace.timeline import Timeline

if TYPE_CHECKING:
    from runtime.settings import Settings

__all__ = ["BACKEND", "LoadedPair", "load_pair", "memory_of", "on_stream"]

BACKEND = "onnxruntime"
"""The backend of bundles that run on the CPU."""


def load_pair(
    bundle: Bundle,
    settings: Settings,
    *,
    timeline: Timeline | None = None,
    on_round: OnRound | None = None,
    tell: Tell | None = None,
    hardware: Hardware = INSTALLED,
    prefix_reuse: bool = True,
) -> Pair:
    """The pair on the devices of its placement, ready to run. The caller closes it.

    ``tell`` gets the memory plan before anything is allocated. ``prefix_reuse`` is of pairs on the
    CPU: on a GPU rows round by the call that writes them, so there no text uses another's.

    Raises what loading raises, and CapacityError where a GPU has too little memory.
    """
    placement = settings.placement
    if placement.devices.on_gpu and timeline is not None:
        raise UsageError(
            f"--trace with --device {placement.devices}: it has the clock of the host's threads, "
            "which only enqueue there; use nsys profile, or --device cpu"
        )
    plan_for = partial(
        memory_of,
        bundle,
        placement,
        settings.num_draft,
        settings.num_branches,
        drafter=settings.drafter,
    )
    plan = require_room(plan_for, settings.max_batch, placement.devices, hardware.free_memory)
    if tell is not None:
        tell(plan.as_text(hardware.free_memory))
    if placement.devices.on_gpu:
        return ResidentPair(
            bundle,
            placement,
            num_draft=settings.num_draft,
            num_branches=settings.num_branches,
            max_batch=settings.max_batch,
            hardware=hardware,
            fallback=settings.fallback,
            drafter=settings.drafter,
            policy=settings.policy,
            on_round=on_round,
            draft_timeout_s=DRAFT_TIMEOUT_S,
            tell=tell,
        )
    return LoadedPair(
        bundle,
        placement,
        verify=settings.verify,
        num_draft=settings.num_draft,
        num_branches=settings.num_branches,
        max_batch=settings.max_batch,
        fallback=settings.fallback,
        saguaro=settings.saguaro,
        lengths=settings.lengths,
        drafter=settings.drafter,
        device=None if timeline is None else TracedDevice(HostDevice(), timeline.span),
        policy=settings.policy,
        on_round=on_round,
        draft_timeout_s=DRAFT_TIMEOUT_S,
        prefix_reuse=prefix_reuse,
    )


def memory_of(
    bundle: Bundle,
    placement: Placement,
    num_draft: int,
    num_branches: int,
    num_slots: int,
    *,
    drafter: Drafter = Drafter.MODEL,
) -> MemoryPlan:
    """What the engines that ``placement`` loads take, at so many texts at once."""
    engines: tuple[EngineManifest, ...] = (
        (bundle.target,) if placement.mode == "ar" or drafter is Drafter.LOOKUP else bundle.engines
    )
    return plan_memory(
        engines,
        placement.devices,
        num_slots=num_slots,
        num_draft=num_draft,
        num_branches=num_branches,
    )
