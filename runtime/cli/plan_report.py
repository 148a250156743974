"""How ``plan`` shows its answer: one table, the verdict, formulas; or one JSON object."""

from __future__ import annotations

from runtime.cli.report import number, percent, table
from runtime.memory_plan import MemoryPlan
from runtime.plan.planner import Choice, Plan
from runtime.plan.verdict import named, verdict

FORMULAS = {
    "tokens/s": "of all texts together: N x mean tokens of an emission / mean time between two",
    "length": "tokens that a verification emits, the bonus token included (acceptance length): "
    "1 + the sum over i of P(the first i drafted tokens are accepted)",
    "hit rate": "p_b / (1 - p_p + p_b): p_p and p_b are the probabilities that an outcome was "
    "prepared, after a hit and after a miss",
    "verify, draft": "seconds of a call of N texts with so many tokens each; every round takes "
    "--exchange-ms more",
    "round (ar)": "verify(N, 1)",
    "round (sd)": "K x draft(N, 1) + verify(N, K + 1)",
    "round (ssd)": "max(verify(N, K + 1), draft(N, 1) + K x draft(N, W)); verify(N, 1) where no "
    "text brings drafts",
    "after a miss": "zero: one token without drafts; jit: K x draft(N, 1) before the round, or "
    "beside it while others go on; lookup: what followed the same words",
    "ITL": "inter-token latency of one text; tokens that are accepted together are 0 apart",
    "wait": "between two arrivals of one text, each of all tokens accepted together",
}
HEADERS = (
    *("mode", "K", "W", "tokens/s", "speed-up", "/device", "length", "hit rate"),
    *("ITL mean", "p50", "p99 ms", "wait p50", "p99 ms"),
)


def as_text(plan: Plan, memory: MemoryPlan | None) -> str:
    """The answer for people."""
    question = plan.question
    devices = question.devices
    used = f"{devices.target} + {devices.draft}" if devices.draft else f"{devices.target}, shared"
    asked = (
        f"texts at once: {question.batch}; devices: {used}; acceptance of a drafted token: "
        f"{question.laws.acceptance:.2f}"
    )
    lines = [
        asked,
        *(f"basis: {note}" for note in question.notes),
        "",
        table(HEADERS, [_row(choice) for choice in plan.choices]).rstrip("\n"),
        "",
        *_best(plan),
        _break_even(plan),
        "",
        *verdict(plan),
        "",
    ]
    if memory is not None:
        lines += [memory.as_text(), ""]
    lines += [f"{name} = {formula}" for name, formula in FORMULAS.items()]
    return "\n".join(lines) + "\n"


def as_record(plan: Plan, memory: MemoryPlan | None) -> dict[str, object]:
    """The answer for programs."""
    question = plan.question
    even = plan.break_even
    return {
        "batch": question.batch,
        "devices": {"target": question.devices.target, "draft": question.devices.draft},
        "acceptance": question.laws.acceptance,
        "basis": question.notes,
        "searched": {"num_draft": question.most_drafts, "num_branches": question.most_branches},
        "modes": [_choice_record(choice) for choice in plan.choices],
        "best": _setting(plan.best),
        "break_even_acceptance": {"sd": even.sd, "ssd": even.ssd, "each_device": even.each},
        "device_pays": _device_pays(plan),
        "verdict": verdict(plan),
        "memory": None if memory is None else memory.as_record(),
        "formulas": FORMULAS,
    }


def _row(choice: Choice) -> list[str]:
    found = choice.prediction
    plan = found.plan
    name = f"ssd {plan.fallback.value}" if plan.mode == "ssd" else plan.mode
    return [
        name,
        str(plan.num_draft) if plan.mode != "ar" else "-",
        str(plan.num_branches) if plan.mode == "ssd" else "-",
        number(found.tokens_s, 1),
        number(choice.speed_up, 2),
        number(choice.tokens_s_each, 1),
        number(found.tokens_round, 2),
        percent(found.hit_rate),
        number(found.token_s * 1e3, 2),
        *(number(found.latency_s(share) * 1e3, 1) for share in (0.5, 0.99)),
        *(number(found.arrival_s(share) * 1e3, 1) for share in (0.5, 0.99)),
    ]


def _best(plan: Plan) -> list[str]:
    best = plan.best
    setting = best.prediction.plan
    if setting.mode == "ar":
        return ["best: plain decoding (--mode ar)"]
    options = f"--mode {setting.mode} --num-draft {setting.num_draft}"
    if setting.mode == "ssd":
        options += f" --branches {setting.num_branches} --fallback {setting.fallback.value}"
    lines = [f"best: {named(best)} ({options})"]
    if best.fan_out:
        lines.append(
            f"outcomes prepared by accepted tokens 0 to {setting.num_draft}: "
            f"{_counts(best.fan_out)} after a hit, {_counts(best.fan_out_after_miss)} after a miss"
        )
    if setting.num_draft == plan.question.most_drafts:
        lines.append("K is the largest that was looked at (--max-draft)")
    return lines


def _counts(values: tuple[int, ...]) -> str:
    return " ".join(map(str, values))


def _break_even(plan: Plan) -> str:
    even = plan.break_even
    parts = [f"sd {_place(even.sd)}", f"ssd {_place(even.ssd)}"]
    if plan.question.devices.draft:
        parts.append(f"for each device ssd {_place(even.each)}")
    return "break-even acceptance (even over all tokens): " + ", ".join(parts)


def _place(value: float | None) -> str:
    return "never" if value is None else f"{value:.3f}"


def _device_pays(plan: Plan) -> bool | None:
    """None where no device is the draft's alone."""
    if not plan.question.devices.draft:
        return None
    return plan.best_of("ssd").tokens_s_each > plan.best_of("ar", "sd").tokens_s_each


def _setting(choice: Choice) -> dict[str, object]:
    plan = choice.prediction.plan
    is_ssd = plan.mode == "ssd"
    return {
        "mode": plan.mode,
        "num_draft": plan.num_draft if plan.mode != "ar" else None,
        "num_branches": plan.num_branches if is_ssd else None,
        "fallback": plan.fallback.value if is_ssd else None,
    }


def _choice_record(choice: Choice) -> dict[str, object]:
    found = choice.prediction
    return {
        **_setting(choice),
        "tokens_per_second": found.tokens_s,
        "speed_up": choice.speed_up,
        "devices": choice.num_devices,
        "tokens_per_second_each": choice.tokens_s_each,
        "acceptance_length": found.tokens_round,
        "round_ms": found.round_s * 1e3,
        "hit_rate": found.hit_rate,
        "hit_rate_after_hit": found.hit_rate_after_hit,
        "hit_rate_after_miss": found.hit_rate_after_miss,
        "fan_out": choice.fan_out or None,
        "fan_out_after_miss": choice.fan_out_after_miss or None,
        "itl_ms": {
            "mean": found.token_s * 1e3,
            "p50": found.latency_s(0.5) * 1e3,
            "p99": found.latency_s(0.99) * 1e3,
        },
        "wait_ms": {
            "p50": found.arrival_s(0.5) * 1e3,
            "p99": found.arrival_s(0.99) * 1e3,
        },
    }
