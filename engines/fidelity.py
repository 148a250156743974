"""What the rounding of an engine's weights cost, as its manifest keeps it."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WeightFidelity:
    """What rounding the weights cost, measured when the engine was built.

    Against the same weights in float32, over ``num_positions`` of texts that the target wrote:
    ``agreement`` is the share of equal greedy choices, ``mean_kl`` E[KL(float32 || engine)] in
    nats.
    """

    num_positions: int
    agreement: float
    mean_kl: float

    def __post_init__(self) -> None:
        if self.num_positions < 1:
            raise ValueError(f"num_positions is {self.num_positions}, expected at least 1")
        if not 0 <= self.agreement <= 1:
            raise ValueError(f"agreement is {self.agreement}, expected a share from 0 to 1")
        if not 0 <= self.mean_kl < math.inf:
            raise ValueError(f"mean_kl is {self.mean_kl}, expected at least 0 nats")
