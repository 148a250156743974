"""The law that the ratio rule emits, found by asking the rule itself.

`emitted_law` integrates the rule over its uniforms exactly: it finds, by calling `verify`, on
which side of which threshold each outcome lies, so it tests the code and not a formula twice.
"""

from __future__ import annotations

import numpy as np

from runtime.sampling.noise import Purpose
from runtime.sampling.params import SamplingParams
from runtime.sampling.proposal import Drafted, SparseLaw
from runtime.sampling.ratio import verify

SAMPLED = SamplingParams(temperature=1.0)
SMALLEST_U, LARGEST_U = 2.0**-53, 1 - 2.0**-53


def fixed(accept: float, bonus: float):
    """Uniforms that do not depend on position."""
    return lambda _seed, _position, purpose: accept if purpose is Purpose.ACCEPT else bonus


def bonus_law(logits, proposal, params, accept_u, accepted) -> np.ndarray:
    """The law of the bonus token over its uniform, given that of acceptance."""

    def bonus_at(u: float) -> int:
        verdict = verify(logits, proposal, params, 0, fixed(accept_u, u))
        assert verdict.accepted == accepted
        return verdict.bonus

    probs = np.zeros(logits.shape[-1])
    start = 0.0
    while start < LARGEST_U:
        token = bonus_at(max(start, SMALLEST_U))
        low, high = max(start, SMALLEST_U), LARGEST_U
        if bonus_at(high) == token:
            probs[token] += 1 - start
            break
        while np.nextafter(low, 1) < high:  # the first u of the next token
            middle = (low + high) / 2
            low, high = (middle, high) if bonus_at(middle) == token else (low, middle)
        probs[token] += high - start
        start = high
    return probs


def emitted_law(logits, q: SparseLaw, params=SAMPLED) -> np.ndarray:
    """The law of the first token that `verify` emits for a draft drawn from q."""
    emitted = np.zeros(logits.shape[-1])
    for token, q_token in zip(q.ids.tolist(), q.probs.tolist(), strict=True):
        proposal = Drafted((token,), (q,))

        def accepts(u: float, proposal=proposal) -> bool:
            return verify(logits, proposal, params, 0, fixed(u, 0.5)).accepted == 1

        low, high = 0.0, 1.0  # accepted below low, rejected from high on
        if accepts(LARGEST_U):
            low = high = 1.0
        elif not accepts(SMALLEST_U):
            low = high = 0.0
        while np.nextafter(low, 1) < high:
            middle = (low + high) / 2
            low, high = (middle, high) if accepts(middle) else (low, middle)
        emitted[token] += q_token * high
        if high < 1:
            emitted += q_token * (1 - high) * bonus_law(logits, proposal, params, LARGEST_U, 0)
    return emitted
