"""Controllers for scripted pairs, where time is added up, so every figure is exact."""

from __future__ import annotations

from runtime.spec.controller import Choices, Controller
from runtime.spec.cost import ByTokens, PairTimes, laws_of_acceptance
from runtime.spec.fallback import Fallback
from runtime.spec.plan import Outlook

# Two cores: a verification costs more for each token, the draft a twentieth of a step.
CPU = PairTimes.apart(
    ByTokens((1, 2, 5), (0.0060, 0.0071, 0.0095)), ByTokens((1, 16), (0.0004, 0.0020)), 0.0003
)
# Two GPUs: the draft works beside a target that is bound by its weights.
GPU = PairTimes.apart(
    ByTokens((1, 64), (0.0140, 0.0160)), ByTokens((1, 64), (0.0011, 0.0016)), 0.0001
)
# A draft as slow as its target.
SLOW_DRAFT = PairTimes.apart(ByTokens((1, 5), (0.0060, 0.0065)), ByTokens((1,), (0.0060,)), 0.0001)
SD = Choices(("sd",), 4)
BOTH = Choices(("sd", "ssd"), 4, 16, tuple(Fallback))


def controller(
    times: PairTimes = CPU, choices: Choices = SD, prior: float = 0.5, batch: int = 1
) -> Controller:
    return Controller(times, laws_of_acceptance(prior), choices, batch=batch)


def far() -> Outlook:
    """Nothing to read, and much to come."""
    return Outlook(10**6)
