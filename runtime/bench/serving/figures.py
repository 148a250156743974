"""Percentiles and rates of a run, under the names of vLLM's serving benchmark. Pure."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.bench.serving.client import Outcome
from runtime.bench.serving.load import Level, Ran

PERCENTILES = (50, 90, 95, 99)
SPEC = "vllm:spec_decode_num_"
ROUNDS, EMITTED = "ssd:num_rounds", "ssd:num_emitted"
Counters = Mapping[str, float]
"""Of a server: name, and a position in brackets where it has one -> value."""


def percentile(values: Sequence[float], share: float) -> float:
    """Linear between the two nearest, as numpy's default; 0 of nothing."""
    if not values:
        return 0.0
    ordered = sorted(values)
    place = (len(ordered) - 1) * share / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summary(values_s: Sequence[float], name: str) -> dict[str, float]:
    """``mean_NAME_ms``, ``median_``, ``std_`` and percentiles, in milliseconds."""
    ms = [1000 * value for value in values_s]
    found = {
        f"mean_{name}_ms": statistics.fmean(ms) if ms else 0.0,
        f"median_{name}_ms": percentile(ms, 50),
        f"std_{name}_ms": statistics.pstdev(ms) if ms else 0.0,
    }
    return found | {f"p{share}_{name}_ms": percentile(ms, share) for share in PERCENTILES}


@dataclass(frozen=True, slots=True)
class Run:
    """One level: what was asked and the keys of vLLM's result file."""

    level: Level
    keys: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.keys[name]


def figures_of(level: Level, ran: Ran, before: Counters, after: Counters) -> Run:
    """``before`` and ``after``: the server's counters, empty where it has none."""
    done = [each for each in ran.outcomes if each.error is None]
    num_in = sum(each.num_prompt_tokens for each in done)
    num_out = sum(each.num_tokens for each in done)
    seconds = ran.duration_s
    keys: dict[str, Any] = {
        "duration": seconds,
        "completed": len(done),
        "failed": len(ran.outcomes) - len(done),
        "total_input_tokens": num_in,
        "total_output_tokens": num_out,
        "total_cached_tokens": sum(each.num_cached for each in done),
        "request_throughput": len(done) / seconds,
        "output_throughput": num_out / seconds,
        "total_token_throughput": (num_in + num_out) / seconds,
        "max_output_tokens_per_s": most_in_a_second(done),
        "max_concurrent_requests": ran.most_at_once,
        "request_rate": "inf" if level.request_rate is None else level.request_rate,
        "max_concurrency": level.concurrency,
        **summary([each.ttft_s for each in done if each.ttft_s is not None], "ttft"),
        **summary([each.tpot_s for each in done if each.tpot_s is not None], "tpot"),
        **summary([itl for each in done for itl in each.itls_s], "itl"),
        **summary([each.latency_s for each in done], "e2el"),
    }
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    return Run(level, keys | _spec(grown) | _rounds(grown))


def details_of(ran: Ran) -> dict[str, list[Any]]:
    """What vLLM's ``--save-detailed`` adds: a list each, in the order of the prompts. Seconds."""
    each = ran.outcomes
    return {
        "input_lens": [one.num_prompt_tokens for one in each],
        "output_lens": [one.num_tokens for one in each],
        "ttfts": [one.ttft_s or 0.0 for one in each],
        "itls": [list(one.itls_s) for one in each],
        "latencies": [one.latency_s for one in each],
        "start_times": [one.started_s for one in each],
        "generated_texts": [one.text for one in each],
        "errors": [one.error or "" for one in each],
    }


def most_in_a_second(outcomes: Sequence[Outcome]) -> float:
    """Tokens that came in the second with the most. A piece may have several tokens: those of an
    answer are spread over its pieces evenly."""
    seconds: dict[int, float] = {}
    for each in outcomes:
        if each.ttft_s is None:
            continue
        times = [each.started_s + each.ttft_s]
        for gap in each.itls_s:
            times.append(times[-1] + gap)
        for time in times:
            seconds[int(time)] = seconds.get(int(time), 0.0) + each.num_tokens / len(times)
    return max(seconds.values(), default=0.0)


_SAMPLE = re.compile(r"^(vllm:spec_decode_num_\w+_total)\{([^}]*)\} (\S+)$", re.MULTILINE)


def counters_of(metrics: str) -> dict[str, float]:
    """The counters of speculative decoding in a text of Prometheus; those of several engines add
    up."""
    found: dict[str, float] = {}
    for name, labels, value in _SAMPLE.findall(metrics):
        place = re.search(r'position="(\d+)"', labels)
        key = name.removesuffix("_total") + (f"[{place[1]}]" if place else "")
        found[key] = found.get(key, 0.0) + float(value)
    return found


def rounds_of(stats: object) -> dict[str, float]:
    """Rounds of all texts, drafted or plain, and the tokens they emitted: sums since the start in
    our server's ``/stats``. Nothing of what says neither, as another server does: vLLM counts only
    the rounds that had drafts."""
    match stats:
        case {"proposals": dict(by_source), "num_emitted": int(num_emitted)}:
            counts = [num for num in by_source.values() if isinstance(num, int)]
            return {ROUNDS: float(sum(counts)), EMITTED: float(num_emitted)}
    return {}


def _rounds(grown: Counters) -> dict[str, Any]:
    """Ours: over all rounds. Left out where there were none, or the server began anew meanwhile."""
    num_rounds, num_emitted = grown.get(ROUNDS, 0.0), grown.get(EMITTED, 0.0)
    if num_rounds <= 0 or num_emitted < 0:
        return {}
    return {
        "num_rounds": int(num_rounds),
        "num_proposals": int(grown.get(SPEC + "drafts", 0.0)),
        "num_emitted": int(num_emitted),
        "acceptance_length": num_emitted / num_rounds,
    }


def _spec(grown: Counters) -> dict[str, Any]:
    """vLLM's own formulas: a rate in percent, and the length with the bonus token. Of proposals
    alone: rounds without drafts are in none of them."""
    num_drafts = grown.get(SPEC + "drafts", 0.0)
    num_tokens = grown.get(SPEC + "draft_tokens", 0.0)
    num_accepted = grown.get(SPEC + "accepted_tokens", 0.0)
    if not num_drafts or not num_tokens:
        return {}
    places = sorted(
        (int(name[len(prefix) : -1]), value)
        for prefix in (SPEC + "accepted_tokens_per_pos[",)
        for name, value in grown.items()
        if name.startswith(prefix)
    )
    return {
        "spec_decode_acceptance_rate": 100 * num_accepted / num_tokens,
        "spec_decode_acceptance_length": 1 + num_accepted / num_drafts,
        "spec_decode_num_drafts": int(num_drafts),
        "spec_decode_draft_tokens": int(num_tokens),
        "spec_decode_accepted_tokens": int(num_accepted),
        "spec_decode_per_position_acceptance_rates": [value / num_drafts for _, value in places],
    }
