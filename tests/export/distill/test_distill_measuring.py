"""Figures of a draft on text of its target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from export.checkpoint.api import open_checkpoint
from export.distill.corpus import Sample
from export.distill.initial import initial_draft
from export.distill.measure import measure, num_rounds
from export.distill.pipeline import split
from export.distill.text import load_target
from tests.helpers.checkpoints import make_llama

DRAFT_IDS = np.append(np.arange(0, 318, 2), 319)  # [160]


@pytest.mark.parametrize(
    ("agrees", "num_draft", "rounds"),
    [
        ([], 2, 0),
        ([0, 0, 0], 2, 3),
        ([1, 1, 1, 1, 1, 1], 2, 2),  # two drafted and one of the target, twice
        ([1, 1, 1, 1], 3, 1),
        ([1, 0, 1, 1, 1], 2, 2),
        ([1, 1], 4, 1),
    ],
)
def test_rounds_of_an_answer(agrees: list[int], num_draft: int, rounds: int) -> None:
    assert num_rounds(np.array(agrees, bool), num_draft) == rounds


@pytest.mark.torch
def test_figures_count_ids_that_the_draft_cannot_say_as_misses(tmp_path: Path) -> None:
    """Leaving them out flatters alpha by the vocabulary's gap (7 % of tokens at 8,192 ids)."""
    import torch

    from export.distill.measure import measure

    target = load_target(open_checkpoint(make_llama(tmp_path / "m")))
    draft = initial_draft(target, [0, 1], DRAFT_IDS)  # the whole target, with half of its ids
    tokens = [11]
    with torch.no_grad():
        for _ in range(60):
            logits = target.logits(target.hidden(torch.tensor([tokens])))
            tokens.append(int(logits[0, -1].argmax()))
    sampled = Sample(np.arange(40), 1, 0.7)
    figures = measure(draft, [sampled, Sample(np.array(tokens), 1, 0.0)], DRAFT_IDS)
    spoken = sum(token in DRAFT_IDS for token in tokens[1:])
    assert 0 < spoken < 60
    assert (figures.num_positions, figures.greedy) == (60, True)  # sampled answers lower alpha
    assert figures.alpha == pytest.approx(spoken / 60)

    unspeakable = measure(draft, [Sample(np.arange(1, 161, 2), 1, 0.0)], DRAFT_IDS)
    assert unspeakable.rank_shares == (0.0,) * 16


@pytest.mark.torch
def test_a_draft_that_has_diverged_is_measured_as_useless(tmp_path: Path) -> None:
    """Nothing is larger than NaN: counted so, such a draft would be the best of its run."""
    target = load_target(open_checkpoint(make_llama(tmp_path / "m", layers=2)))
    draft = initial_draft(target, (0, 1), DRAFT_IDS)
    draft.weights["model.norm.weight"].data.fill_(float("nan"))
    samples = [Sample(np.arange(3 + n, 23 + n), 5, 0.0) for n in range(4)]
    figures = measure(draft, samples, DRAFT_IDS)
    assert (figures.alpha, sum(figures.rank_shares)) == (0.0, 0.0)
    assert figures.tokens_per_round[4] == 1.0


def test_text_that_quotes_a_held_out_answer_is_not_trained_on() -> None:
    """Tasks over an answer show it in their prompts, which soft labels are learned from, too."""
    rng = np.random.default_rng(0)
    asked = [Sample(rng.integers(3, 300, 60), 10, 0.0) for _ in range(50)]
    prefix = np.array([1, 2])
    tasks = [
        Sample(np.concatenate([prefix, each.ids[20:50], rng.integers(3, 300, 20)]), 32, 0.0)
        for each in asked
    ]
    training, held_out = split([*asked, *tasks], seed=3)
    assert {id(each) for each in held_out} & {id(each) for each in asked}
    for sample in held_out:
        answer = sample.ids[sample.answer_start :].tobytes()
        assert not any(answer[80:280] in each.ids.tobytes() for each in training)
    assert len(training) > 80
