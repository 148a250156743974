"""How two sets of logits for the same text differ, in figures (numpy only)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engines.fidelity import WeightFidelity

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first position of an answer where the two choose different tokens.

    ``margin`` is the distance of the reference's two largest logits there: a divergence with a
    margin below the largest difference of logits is rounding, a larger one is not.
    """

    prompt: int
    position: int
    reference_id: int
    engine_id: int
    margin: float


@dataclass(frozen=True, slots=True)
class Fidelity:
    """``max_abs_difference`` covers all positions, the rest those of the answers: there the text
    is the reference's own. ``mean_kl`` is E[KL(reference || engine)] in nats."""

    num_prompts: int
    num_positions: int
    max_abs_difference: float
    top1_agreement: float
    mean_kl: float
    first_divergence: Divergence | None


def compare(
    reference: Sequence[Logits], engine: Sequence[Logits], answer_starts: Sequence[int]
) -> Fidelity:
    """Figures over several texts of finite logits.

    ``reference[i]`` and ``engine[i]`` are [tokens, V]; the logits that predict answer i's first
    token stand in row ``answer_starts[i] - 1``.
    """
    largest, divergences, agreeing, kls = 0.0, [], [], []
    for prompt, (left, right, start) in enumerate(
        zip(reference, engine, answer_starts, strict=True)
    ):
        largest = max(largest, float(np.abs(left - right).max()))
        left, right = left[start - 1 :], right[start - 1 :]
        chosen, theirs = left.argmax(axis=1), right.argmax(axis=1)
        agreeing.append(chosen == theirs)
        kls.append(kl_divergence(left, right))
        if not agreeing[-1].all():
            row = int(np.flatnonzero(~agreeing[-1])[0])
            second, first = np.partition(left[row], -2)[-2:]
            divergences.append(
                Divergence(
                    prompt, start + row, int(chosen[row]), int(theirs[row]), float(first - second)
                )
            )
    agreements = np.concatenate(agreeing)
    return Fidelity(
        num_prompts=len(agreeing),
        num_positions=len(agreements),
        max_abs_difference=largest,
        top1_agreement=float(agreements.mean()),
        mean_kl=float(np.concatenate(kls).mean()),
        first_divergence=divergences[0] if divergences else None,
    )


def in_words(fidelity: WeightFidelity) -> str:
    """What a build measured, for people."""
    return (
        f"same most likely token as in float32 at {fidelity.agreement:.1%} of "
        f"{fidelity.num_positions} positions, mean KL divergence {fidelity.mean_kl:.2g} nats"
    )


def kl_divergence(reference: Logits, engine: Logits) -> npt.NDArray[np.float64]:
    """KL(softmax(reference) || softmax(engine)) of each row. [tokens, V] twice -> [tokens]."""
    p, q = _log_softmax(reference), _log_softmax(engine)
    divergence: npt.NDArray[np.float64] = (np.exp(p) * (p - q)).sum(axis=1)
    return divergence


def _log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    normalised: npt.NDArray[np.float64] = shifted - np.log(
        np.exp(shifted).sum(axis=1, keepdims=True)
    )
    return normalised
