"""The answer in sentences that need no knowledge of the method."""

from __future__ import annotations

from runtime.plan.planner import Choice, Plan

NEAR = 1.02
"""Predictions nearer to each other than this are as good as equal."""
SOME = 0.005
"""Acceptance that two decimals do not tell from none."""


def verdict(plan: Plan) -> tuple[str, ...]:
    """Whether it pays at all; whether a device of the draft's own does; what to do."""
    lines = [_fastest(plan)]
    if plan.question.devices.draft:
        lines.append(_device(plan))
    return tuple(lines)


def _fastest(plan: Plan) -> str:
    best, plain = plan.best, plan.plain
    if best.mode == "ar":
        least = _at_least(plan.break_even.sd, plan.break_even.ssd)
        return (
            f"Speculation does not pay here: plain decoding gives {rate(plain)}, the best "
            f"speculative mode {rate(plan.best_of('sd', 'ssd'))}. {_from_acceptance(plan, least)}"
        )
    if best.tokens_s < NEAR * plain.tokens_s:
        return (
            f"Speculation gains next to nothing here: {named(best)} gives {rate(best)}, plain "
            f"decoding {rate(plain)}."
        )
    return (
        f"Speculation pays: {named(best)} gives {rate(best)}, {best.speed_up:.2f} times plain "
        f"decoding's {plain.tokens_s:,.4g}. {_slower(plan, best)}"
    )


def _slower(plan: Plan, best: Choice) -> str:
    """What there is besides the fastest mode."""
    if best.mode == "ssd":
        other = plan.best_of("sd")
        return f"Without drafting ahead (sd) it is {rate(other)}."
    other = plan.best_of("ssd")
    return f"Drafting ahead (ssd) gains nothing: {rate(other)}."


def _device(plan: Plan) -> str:
    """Of the devices that only the draft uses: what all earn with them, and without."""
    ahead, alone = plan.best_of("ssd"), plan.best_of("ar", "sd")
    one = plan.question.devices.draft == 1
    figures = (
        f"{ahead.tokens_s_each:,.4g} tokens/s for each of {ahead.num_devices} devices with "
        f"{'it' if one else 'them'}, {alone.tokens_s_each:,.4g} for "
        f"{_each_of(alone.num_devices)} without ({alone.mode})"
    )
    if ahead.tokens_s_each > alone.tokens_s_each:
        pays = "device pays for itself" if one else "devices pay for themselves"
        return f"The draft's own {pays}: {figures}."
    does_not = "device does not pay for itself" if one else "devices do not pay for themselves"
    faster = ahead.tokens_s / alone.tokens_s
    use = (
        f"Buy {'it' if one else 'them'} for speed, not for throughput: every answer comes "
        f"{faster:.2f} times as fast."
        if faster > NEAR
        else f"No answer comes faster for {'it' if one else 'them'}, either."
    )
    when = _from_acceptance(plan, plan.break_even.each)
    return f"The draft's own {does_not}: {figures}. {use} {when}"


def _each_of(num_devices: int) -> str:
    return "the one" if num_devices == 1 else f"each of {num_devices}"


def _from_acceptance(plan: Plan, least: float | None) -> str:
    if least is None:
        return (
            "It would at no acceptance, with these step times and K up to "
            f"{plan.question.most_drafts}."
        )
    start = "any acceptance above 0" if least < SOME else f"an acceptance of {least:.2f}"
    return f"It would from {start} on, even over all tokens."


def _at_least(*values: float | None) -> float | None:
    return min((value for value in values if value is not None), default=None)


def named(choice: Choice) -> str:
    """A setting in words."""
    plan = choice.prediction.plan
    if plan.mode == "ar":
        return "plain decoding (ar)"
    if plan.mode == "sd":
        return f"sd with K = {plan.num_draft}"
    return f"ssd with K = {plan.num_draft}, W = {plan.num_branches}, fallback {plan.fallback.value}"


def rate(choice: Choice) -> str:
    """Its tokens a second."""
    return f"{choice.tokens_s:,.4g} tokens/s"
