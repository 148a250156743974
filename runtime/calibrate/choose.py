"""The choices themselves: the fastest by the cost model's prediction."""

from __future__ import annotations

from engines.bundle import Bundle
from runtime.calibrate.sample import pair_laws, ranked_texts
from runtime.calibrate.times import machine_key, measure
from runtime.device.cores import available_cores, cpu_quota
from runtime.memo import Memo
from runtime.placement import place
from runtime.spec.cost import best_fallback, predict
from runtime.spec.fallback import Fallback
from runtime.spec.replay import replay
from runtime.spec.saguaro import SCALES, best_scale
from runtime.spec.statistics import OutcomeStatistics

MARGIN = 1.15
"""How much faster than plain decoding a mode must look: the measured texts are on other prompts."""


def choose_mode(bundle: Bundle, num_draft: int, num_branches: int) -> tuple[str, str]:
    """The mode predicted to be fastest, and one line saying why."""
    if bundle.draft is None or num_draft < 1:
        return "ar", "auto chose ar: there is no draft to speculate with"
    if place("ssd", available_cores(), cpu_quota(), has_draft=True).mode != "ssd":
        num_branches = 0
    memo = Memo()
    times = measure(bundle, num_draft, num_branches, memo)
    learned = _learn(bundle, num_draft, num_branches, memo)
    fallback = best_fallback(times, learned, num_branches)
    rates = predict(times, learned[fallback], num_branches, fallback)
    if num_branches == 0:
        del rates["ssd"]
    best = max(rates, key=lambda mode: rates[mode])
    if rates[best] < MARGIN * rates["ar"]:
        best = "ar"
    listed = ", ".join(f"{mode} {rate:.0f}" for mode, rate in rates.items())
    why = f"predicted tokens/s {listed}; speculation has to beat ar by {MARGIN - 1:.0%}"
    return best, f"auto chose {best}: {why}"


def choose_fallback(bundle: Bundle, num_draft: int, num_branches: int) -> Fallback:
    """What rows of ``ssd`` should go on with after a miss, by the same prediction."""
    memo = Memo()
    times = measure(bundle, num_draft, num_branches, memo)
    return best_fallback(times, _learn(bundle, num_draft, num_branches, memo), num_branches)


def choose_saguaro(
    bundle: Bundle,
    num_draft: int,
    num_branches: int,
    fallback: Fallback = Fallback.ZERO,
    temperature: float = 1.0,
) -> float:
    """The C of Saguaro sampling that ``ssd`` with the ratio rule is predicted to be fastest with.

    Tuned for one temperature and remembered; 1 (off) where nothing could be measured.
    """
    memo = Memo()
    key = (
        f"saguaro:{machine_key(bundle)}:K {num_draft} W {num_branches}"
        f" {fallback.value} T {temperature}"
    )
    known = memo.get(key)
    if isinstance(known, float) and known in SCALES:
        return known
    times = measure(bundle, num_draft, num_branches, memo)
    laws = pair_laws(bundle, temperature, memo)
    if laws is None or laws.left.max() <= num_draft:
        return 1.0
    found = best_scale(laws, times, num_draft, num_branches, fallback)
    memo.put(key, found)
    return found


def _learn(
    bundle: Bundle, num_draft: int, num_branches: int, memo: Memo
) -> dict[Fallback, OutcomeStatistics]:
    """What the sampled texts teach, from the maker's figures on: the rounds of ``ssd`` with each
    fallback, and those of ``sd`` (no branches, all drafted just in time)."""
    figures = bundle.manifest.draft_figures
    texts = ranked_texts(bundle, memo)
    learned = {}
    for fallback in Fallback:
        statistics = OutcomeStatistics(
            num_draft, max(1, num_branches), figures.ranks if figures else ()
        )
        for text in texts:
            replay(text, statistics, num_branches, fallback)
            if fallback is not Fallback.JIT:
                replay(text, statistics, 0, Fallback.JIT)
        learned[fallback] = statistics
    return learned
