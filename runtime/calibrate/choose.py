"""What is decided at load: placement, and what the controller starts from."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import log

from engines.bundle import Bundle
from runtime.calibrate.sample import pair_laws, ranked_texts
from runtime.calibrate.times import Measured, machine_key, measure
from runtime.device.cores import available_cores, cpu_quota
from runtime.memo import Memo
from runtime.placement import place
from runtime.spec.controller import Choices, Controller
from runtime.spec.cost import Laws, PairTimes
from runtime.spec.cost.search import best
from runtime.spec.drafter import Drafter
from runtime.spec.fallback import Fallback
from runtime.spec.length import Costs, Lengths
from runtime.spec.plan import PLAIN, RoundPlan
from runtime.spec.replay import replay
from runtime.spec.saguaro import SCALES, best_scale
from runtime.spec.statistics import OutcomeStatistics

NEVER_SLOWER = 0.97
"""Plain decoding on the cores that ``ssd`` leaves the target is as good as on all of them if it is
this fast: then nothing is lost where speculation does not pay."""
MARGIN, BETTING_MARGIN = 1.03, 1.15
"""How much faster two engines side by side must look than taking turns; the latter where plain
decoding would be slower for it, since the placement stays and the texts to come are unknown."""

Announce = Callable[[str], None]
"""Told a line before the machine is measured, which takes some seconds."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was found about a pair on this machine.

    layout    the mode whose placement is taken: ``ar`` (no draft), ``sd`` (engines take turns, the
              target has all cores) or ``ssd`` (side by side)
    times     seconds by shape under that placement; None without a draft
    laws      of the target's texts on built-in prompts; None without a draft
    note      one line on what was chosen and why
    """

    layout: str
    choices: Choices
    times: PairTimes | None
    laws: Laws | None
    note: str

    def controller(self, batch: int, *, is_cut: bool = False) -> Controller | None:
        """A policy that starts from this; None where there is nothing to choose. ``is_cut``:
        proposals may end before K."""
        if self.times is None or self.laws is None:
            return None
        tell = logging.getLogger("runtime").info
        return Controller(
            self.times, self.laws, self.choices, batch=batch, is_cut=is_cut, on_change=tell
        )


def calibrate(
    bundle: Bundle,
    num_draft: int,
    num_branches: int,
    batch: int,
    fallbacks: Sequence[Fallback] = tuple(Fallback),
    drafters: Sequence[Drafter] = (Drafter.MODEL,),
    announce: Announce | None = None,
) -> Calibration:
    """Measure the pair on this machine, or remember; choose the placement for ``auto``.

    Up to K drafts, W branches and ``batch`` rows, by ``drafters``. Takes some seconds the first
    time, which ``announce`` is told before they pass.
    """
    only_copies = all(each is Drafter.LOOKUP for each in drafters)
    if num_draft < 1 or (bundle.draft is None and not only_copies):
        note = "auto runs ar: there is no draft to speculate with"
        return Calibration("ar", Choices(), None, None, note)
    if only_copies:
        return _of_lookups(bundle, num_draft, batch, announce)
    why = "the machine was busy when measured"
    if num_branches < 1:
        why = "there are no branches to prepare outcomes in"
    elif place("ssd", available_cores(), cpu_quota(), has_draft=True).mode != "ssd":
        num_branches, why = 0, "one core serves both"
    memo = Memo()
    say = announce and partial(announce, _notice("--mode auto", "--mode ar or sd"))
    times = measure(bundle, num_draft, num_branches, batch, memo, say)
    laws = bundle_laws(bundle, num_draft, max(1, num_branches), memo)
    turns = Choices(("sd",), num_draft, drafters=tuple(drafters))
    if times.apart is None:
        return _calibration("sd", turns, times.together, laws, why)
    modes = "sd", "ssd"
    beside = Choices(modes, num_draft, num_branches, tuple(fallbacks), tuple(drafters))
    batches = sorted({1, batch})
    gain = _speed(times.apart, laws, batches, beside) / _speed(times.together, laws, batches, turns)
    plain = _speed(times.apart, laws, batches) / _speed(times.together, laws, batches)
    needed = MARGIN if plain >= NEVER_SLOWER else BETTING_MARGIN
    why = f"side by side x{gain:.2f} of taking turns predicted, x{needed:.2f} needed"
    if gain >= needed:
        return _calibration("ssd", beside, times.apart, laws, why)
    return _calibration("sd", turns, times.together, laws, why)


def _of_lookups(
    bundle: Bundle, num_draft: int, batch: int, announce: Announce | None
) -> Calibration:
    """No draft engine runs: what a text offers is seen in the text, and only the target is timed
    where there is no other."""
    memo = Memo()
    say = announce and partial(announce, _notice("--mode auto", "--mode ar or sd"))
    times = measure(bundle, num_draft, 0, batch, memo, say)
    laws = Laws.of(OutcomeStatistics(num_draft, 1))
    choices = Choices(("sd",), num_draft, drafters=(Drafter.LOOKUP,))
    return _calibration("sd", choices, times.together, laws, "drafts are looked up in the text")


def pair_times(
    bundle: Bundle,
    num_draft: int,
    num_branches: int,
    batch: int,
    memo: Memo | None = None,
    announce: Callable[[], None] | None = None,
) -> PairTimes:
    """Seconds by shape for the cost model: ``ar`` and ``sd`` with the target on all cores, ``ssd``
    side by side."""
    times = measure(bundle, num_draft, num_branches, batch, memo, announce)
    together, apart = times.together.times, (times.apart or times.together).times
    return PairTimes(
        together.target, apart.target, together.draft, apart.draft, together.exchange_s
    )


def bundle_laws(
    bundle: Bundle, num_draft: int, num_branches: int, memo: Memo | None = None
) -> Laws:
    """What the sampled texts teach, from the maker's figures on: their rounds with each fallback,
    and those in which all was drafted just in time."""
    figures = bundle.manifest.draft_figures
    statistics = OutcomeStatistics(num_draft, num_branches, figures.ranks if figures else ())
    for text in ranked_texts(bundle, memo or Memo()):
        for fallback in Fallback:
            replay(text, statistics, num_branches, fallback)
        replay(text, statistics, 0, Fallback.JIT)
    return Laws.of(statistics)


def choose_fallback(
    bundle: Bundle,
    num_draft: int,
    num_branches: int,
    batch: int = 1,
    announce: Announce | None = None,
) -> Fallback:
    """What rows of ``ssd`` with that K and W should go on with after a miss."""
    memo = Memo()
    say = announce and partial(announce, _notice("--fallback auto", "--fallback zero"))
    times = pair_times(bundle, num_draft, num_branches, batch, memo, say)
    laws = bundle_laws(bundle, num_draft, num_branches, memo)
    plans = [RoundPlan("ssd", num_draft, num_branches, fallback) for fallback in Fallback]
    return best(times, laws, batch, plans).plan.fallback


def proposal_lengths(bundle: Bundle, num_draft: int, num_branches: int, batch: int = 1) -> Lengths:
    """Where proposals of up to K tokens end, by this machine's step times."""
    memo = Memo()
    times = pair_times(bundle, num_draft, num_branches, batch, memo)
    laws = bundle_laws(bundle, num_draft, max(1, num_branches), memo)
    plans = [PLAIN, *(RoundPlan("sd", depth) for depth in range(1, num_draft + 1))]
    return Lengths(Costs.of(times, batch, num_draft, best(times, laws, batch, plans).tokens_s))


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
    times = pair_times(bundle, num_draft, num_branches, 1, memo)
    laws = pair_laws(bundle, temperature, memo)
    if laws is None or laws.left.max() <= num_draft:
        return 1.0
    found = best_scale(laws, times, num_draft, num_branches, fallback)
    memo.put(key, found)
    return found


def _notice(option: str, instead: str) -> str:
    return (
        f"measuring this machine for {option}, once per bundle if no other program disturbs it "
        f"({instead} skips it)"
    )


def _calibration(
    layout: str, choices: Choices, measured: Measured, laws: Laws, why: str
) -> Calibration:
    note = f"auto placed the target {_PLACES[layout]} ({why})"
    return Calibration(layout, choices, measured.times, laws, note)


_PLACES = {"sd": "on all cores", "ssd": "beside the draft"}


def _speed(
    measured: Measured, laws: Laws, batches: Sequence[int], choices: Choices | None = None
) -> float:
    """Tokens a second of the best plan (without choices: of plain decoding), as the geometric mean
    over the batches."""
    plans = [PLAIN, *(choices.plans() if choices else [])]
    rates = [best(measured.times, laws, batch, plans).tokens_s for batch in batches]
    return float(2.0 ** (sum(log(rate, 2) for rate in rates) / len(rates)))
