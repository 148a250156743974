"""What an LLM is opened with: the caller's wishes, checked against bundle and machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from engines.bundle import Bundle
from engines.compat import TENSORRT_BACKENDS, require
from engines.errors import UsageError
from runtime.calibrate import (
    calibrate,
    choose_fallback,
    choose_saguaro,
    proposal_lengths,
)
from runtime.device.cores import available_cores, cpu_quota
from runtime.devices import CPU, DeviceName, DevicePair, parse_devices, require_one_gpu_each
from runtime.placement import (
    AUTO,
    Placement,
    idle_options,
    place,
    place_on_gpus,
)
from runtime.request import whole_number
from runtime.resident import require_supported
from runtime.spec.drafter import Drafter
from runtime.spec.fallback import Fallback
from runtime.spec.length import Lengths
from runtime.spec.plan import Policy
from runtime.wishes import (
    read_batch,
    read_count,
    read_drafter,
    read_fallback,
    read_saguaro,
    require_adaptable,
)

PREPARING = ("ssd", AUTO)
"""The modes in which a draft prepares outcomes, and so can hit or miss."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything decided: ``note`` says why, where it is not what was asked for.

    ``policy`` decides anew in each round; None: mode, K, W and fallback stay as they are here.
    ``lengths`` ends proposals where the draft is unsure of itself; None: all have K tokens.
    ``drafter``: with LOOKUP no draft engine is loaded.
    """

    placement: Placement
    verify: str
    num_draft: int
    num_branches: int
    max_batch: int
    fallback: Fallback
    saguaro: float
    note: str | None
    policy: Policy | None = None
    lengths: Lengths | None = None
    drafter: Drafter = Drafter.MODEL


def settle(
    bundle: Bundle,
    *,
    mode: str,
    verify: str,
    num_draft: int | None,
    branches: int | None,
    max_batch: int | None,
    fallback: str,
    saguaro: float | str,
    drafter: str = AUTO,
    adaptive_length: bool = False,
    backend: str | None = None,
    device: str | None = None,
    draft_sm_share: float | None = None,
    tensor_parallel: int = 1,
    announce: Callable[[str], None] | None = None,
) -> Settings:
    """Decide what is left open (None, ``auto``), by measuring this machine where that needs it:
    ``announce`` is told a line before.

    Raises UsageError, BundleIncompatibleError or CapacityError for what cannot be.
    """
    names = {"mode": mode, "verify": verify, "fallback": fallback, "drafter": drafter}
    for name, value in (*names.items(), ("backend", backend or "")):
        if not isinstance(value, str):
            raise UsageError(f"{name} is {value!r}, expected a name")
    num_draft = read_count("num_draft", num_draft)
    branches = read_count("branches", branches)
    devices = devices_for(bundle, device, draft_sm_share, tensor_parallel)
    limits = bundle.manifest.limits
    is_beyond = (num_draft or 0) > limits.num_draft or (branches or 0) > limits.max_branches
    require(
        bundle,
        backend=bundle.manifest.backend if backend is None else backend,
        num_draft=num_draft,
        branches=branches,
        # One rebuild for all of them; a batch that alone is beyond is refused below.
        batch=whole_number(max_batch) if is_beyond and max_batch is not None else None,
        on_gpu=devices.on_gpu,
    )
    depth = limits.num_draft if num_draft is None else num_draft
    width = limits.max_branches if branches is None else branches
    batch = read_batch(max_batch, limits.max_batch)
    after_miss = read_fallback(fallback)
    source = read_drafter(drafter, mode, devices, has_draft=bundle.draft is not None)
    share = read_saguaro(saguaro, verify)
    given: dict[str, object] = {
        "num_draft": num_draft,
        "drafter": drafter,
        "branches": branches,
        # Where nothing can miss, zero asks for nothing.
        "fallback": AUTO if after_miss is Fallback.ZERO else fallback,
        "saguaro": saguaro,
    }
    if devices.on_gpu:
        after_miss = after_miss or Fallback.ZERO
        require_supported(verify, after_miss, draft_on_gpu=devices.draft.is_gpu)
    if adaptive_length:
        require_adaptable(mode, verify, devices, source)
    layout = _lay_out(
        bundle, mode, devices, source, depth, width, batch, after_miss, adaptive_length, announce
    )
    placement = layout.placement
    if idle := idle_options(mode, given):
        raise UsageError(f"{', '.join(idle)} has no effect in mode {mode}; leave it away")
    _check_depth(placement, depth, width)
    if after_miss is None:
        is_open = placement.mode == "ssd"  # a policy chooses by itself
        after_miss = (
            choose_fallback(bundle, depth, width, batch, announce=announce)
            if is_open
            else Fallback.ZERO
        )
    if share is None:
        prepares = layout.prepares
        share = choose_saguaro(bundle, depth, width, after_miss) if prepares else 1.0
    notes = [placement.note or layout.note]
    if bundle.draft is None and placement.mode != "ar":
        notes.append("drafts are looked up in the text: this bundle has no draft")
    if idle := idle_options(placement.mode, given):
        notes.append(f"{', '.join(idle)} has no effect in {placement.mode}")
    return Settings(
        placement,
        verify,
        depth,
        width,
        batch,
        after_miss,
        share,
        "; ".join(filter(None, notes)) or None,
        layout.policy,
        proposal_lengths(bundle, depth, width, batch)
        if adaptive_length and placement.mode != "ar"
        else None,
        source,
    )


def devices_for(
    bundle: Bundle,
    device: str | None,
    draft_sm_share: float | None = None,
    tensor_parallel: int = 1,
) -> DevicePair:
    """The devices asked for; else the CPU, and for compiled engines the first GPU.

    Raises UsageError for what the bundle cannot run on.
    """
    number = whole_number(tensor_parallel)
    if number is None:
        raise UsageError(f"tensor_parallel is {tensor_parallel!r}, expected a whole number")
    require_one_gpu_each(number)
    is_compiled = bundle.manifest.backend in TENSORRT_BACKENDS
    default = DeviceName(0) if is_compiled else CPU
    text = str(default) if device is None else device
    if not isinstance(text, str):
        raise UsageError(f"device is {device!r}, expected a name such as cuda:0")
    devices = parse_devices(text, draft_sm_share)
    if is_compiled and devices.on_gpu and not devices.draft.is_gpu:
        raise UsageError(
            f"--device {devices}: the draft of this bundle was compiled by "
            f"{bundle.manifest.backend} and does not run on the CPU; name a GPU for it, or "
            "rebuild the bundle with --backend onnxruntime"
        )
    if devices.draft_sm_share is not None and not is_compiled:
        raise UsageError(
            "--draft-sm-share divides a GPU by contexts of its own, and ONNX Runtime runs in the "
            "GPU's common one; leave it away, or rebuild the bundle with --backend tensorrt"
        )
    return devices


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where and how to run, whether outcomes may be prepared, who decides from round to round,
    and why."""

    placement: Placement
    prepares: bool
    policy: Policy | None = None
    note: str | None = None


def _lay_out(
    bundle: Bundle,
    mode: str,
    devices: DevicePair,
    drafter: Drafter,
    num_draft: int,
    num_branches: int,
    max_batch: int,
    after_miss: Fallback | None,
    adaptive_length: bool,
    announce: Callable[[str], None] | None,
) -> _Layout:
    has_draft = bundle.draft is not None
    cores, quota = available_cores(), cpu_quota()
    if devices.on_gpu:
        note = None
        if mode == AUTO:
            mode, note = _mode_on_gpus(devices, has_draft=has_draft and num_draft > 0)
        placement = place_on_gpus(mode, devices, cores, quota, has_draft=has_draft)
        return _Layout(placement, mode == "ssd", note=note)
    if mode != AUTO:
        placement = place(mode, cores, quota, has_draft=has_draft)
        return _Layout(placement, placement.mode == "ssd")
    fallbacks = tuple(Fallback) if after_miss is None else (after_miss,)
    # With a draft that may be looked past, rounds without it are to be had, too.
    drafters = (drafter, Drafter.LOOKUP) if drafter is Drafter.BOTH else (drafter,)
    found = calibrate(
        bundle, num_draft, num_branches, max_batch, fallbacks, drafters, announce=announce
    )
    policy = found.controller(max_batch, is_cut=adaptive_length)
    placement = place(found.layout, cores, quota, has_draft=has_draft)
    if policy is not None:
        placement = dataclasses.replace(placement, mode=AUTO)
    return _Layout(placement, "ssd" in found.choices.modes, policy, found.note)


def _mode_on_gpus(devices: DevicePair, *, has_draft: bool) -> tuple[str, str]:
    """Nothing is measured there yet: the mode that suits the devices, and the line that says so."""
    if not has_draft:
        return "ar", "auto chose ar: there is no draft to speculate with"
    if devices.is_shared:
        return "sd", f"auto chose sd, unmeasured: both engines share {devices.target}"
    return "ssd", f"auto chose ssd, unmeasured: the draft has {devices.draft} to itself"


def _check_depth(placement: Placement, num_draft: int, num_branches: int) -> None:
    mode = placement.mode
    if mode != "ar" and num_draft < 1:
        raise UsageError(
            f"mode {mode} needs at least one drafted token: --num-draft 1, here or, where the "
            "bundle was built with none, when it is rebuilt"
        )
    if mode == "ssd" and num_branches < 1:
        raise UsageError(
            "mode ssd needs at least one branch: --branches 1 or, where the bundle was built "
            "with none, a rebuild with --max-branches 1 or more"
        )
