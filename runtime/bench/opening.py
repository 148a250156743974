"""Opening a bundle for the measurements of ``bench`` itself."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from engines.bundle import open_bundle
from engines.compat import require
from runtime.cli.options import OpenLlm
from runtime.device.cores import available_cores, cpu_quota
from runtime.placement import AUTO, OPTION_MODES, place
from runtime.spec.plan import RoundReport

if TYPE_CHECKING:
    from runtime.llm import LLM


def require_modes(args: argparse.Namespace, modes: Sequence[str]) -> None:
    """Refuse what one of ``modes`` cannot be opened with, before the first of them is loaded.

    Raises BundleError, BundleIncompatibleError and UsageError.
    """
    bundle = open_bundle(args.bundle)
    require(
        bundle,
        backend=bundle.manifest.backend,
        num_draft=args.num_draft,
        branches=args.branches,
    )
    for mode in modes:
        if mode != AUTO:
            place(mode, available_cores(), cpu_quota(), has_draft=bundle.draft is not None)


def open_mode(
    args: argparse.Namespace,
    mode: str,
    *,
    on_round: Callable[[RoundReport], None],
    drafter: str | None = None,
) -> LLM:
    """``args.bundle`` in one mode, for one prompt at a time, which it reads from its first token
    on, also the second time. An option that the mode does not have asks for nothing."""
    open_llm: OpenLlm = args.open_llm
    wishes: dict[str, Any] = {
        name: value
        for name in ("num_draft", "branches", "fallback")
        if (value := getattr(args, name)) is not None and mode in (*OPTION_MODES[name], "auto")
    }
    if args.device is not None:
        wishes["device"] = args.device
    if drafter is not None and mode != "ar":
        wishes["drafter"] = drafter
    return open_llm(
        args.bundle, mode=mode, max_batch=1, prefix_reuse=False, on_round=on_round, **wishes
    )
