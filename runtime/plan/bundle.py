"""A bundle's own step times and laws on this machine, for the planner."""

from __future__ import annotations

from engines.bundle import Bundle
from engines.errors import UsageError
from runtime.calibrate.choose import bundle_laws
from runtime.calibrate.times import measure
from runtime.device.cores import available_cores, cpu_quota
from runtime.placement import place
from runtime.spec.cost.laws import Laws
from runtime.spec.cost.times import PairTimes


def require_pair(bundle: Bundle, batch: int, num_draft: int, num_branches: int) -> None:
    """Raise UsageError for a bundle with nothing to plan, or built for less of anything."""
    limits = bundle.manifest.limits
    if bundle.draft is None or limits.num_draft < 1 or limits.max_branches < 1:
        raise UsageError(
            f"{bundle.path} has no draft that drafts ahead; build a pair: "
            "python -m export build --draft NAME"
        )
    for option, asked, built, rebuild in (
        ("--batch", batch, limits.max_batch, "--max-batch"),
        ("--max-draft", num_draft, limits.num_draft, "--num-draft"),
        ("--max-branches", num_branches, limits.max_branches, "--max-branches"),
    ):
        if asked > built:
            raise UsageError(
                f"{option} {asked} is beyond the {built} that {bundle.path} was built for; rebuild "
                f"with {rebuild} {asked}, or give step times: --target-ms, --draft-ms"
            )


def times_of(bundle: Bundle, num_draft: int, num_branches: int, batch: int) -> PairTimes:
    """Seconds by shape, measured now (some seconds) or remembered.

    Raises UsageError on one core, where nothing runs side by side, and on a machine that is too
    busy to measure it.
    """
    otherwise = "or give step times: --target-ms, --draft-ms"
    if place("ssd", available_cores(), cpu_quota(), has_draft=True).mode != "ssd":
        raise UsageError(
            f"one core cannot run two engines side by side; take a machine with more, {otherwise}"
        )
    found = measure(bundle, num_draft, num_branches, batch)
    if found.apart is None:
        raise UsageError(
            "other programs keep this machine too busy to measure step times; run it again when "
            f"they rest, {otherwise}"
        )
    turns, apart = found.together.times, found.apart.times
    return PairTimes(turns.target, apart.target, turns.draft, apart.draft, turns.exchange_s)


def laws_of(bundle: Bundle, num_draft: int, num_branches: int) -> Laws:
    """Of texts that the target writes on built-in prompts (some seconds), or remembered."""
    return bundle_laws(bundle, num_draft, num_branches)
