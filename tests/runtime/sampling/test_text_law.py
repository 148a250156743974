"""Penalties, biases and forbidden words: each place of a block sees what stands before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugins.law import reference
from runtime.sampling.api import rule
from runtime.sampling.logits import adjusted, law
from runtime.sampling.params import SamplingParams
from runtime.sampling.proposal import Drafted, Lookup, Nothing, Proposal, SparseLaw
from runtime.sampling.text_law import TextLaw
from tests.helpers.chi_square import excess

VOCAB = 24
TOKENS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12)
EDITS = st.floats(-3, 3, width=16)


@st.composite
def penalised(draw: st.DrawFn) -> SamplingParams:
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.7, 1.0])),
        top_k=draw(st.sampled_from([0, 3])),
        top_p=draw(st.sampled_from([1.0, 0.8])),
        seed=draw(st.integers(0, 99)),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3, 0.5, 1e9])),
        presence_penalty=draw(EDITS),
        frequency_penalty=draw(EDITS),
        logit_bias=draw(st.dictionaries(st.integers(0, VOCAB - 1), EDITS, max_size=3)),
    )


class Model:
    """Logits that hang on the position alone, so that nothing but the penalties moves a text."""

    def __init__(self, seed: int) -> None:
        values = np.random.default_rng(seed).standard_normal((64, VOCAB)) * 2
        self.rows = values.astype(np.float32)

    def decode(
        self,
        name: str,
        params: SamplingParams,
        prompt: Sequence[int],
        drafts: Sequence[Sequence[int]],
        num_tokens: int,
    ) -> list[int]:
        """The text by rounds with these drafts, one after the other, then without any."""
        judge, text = rule(name), TextLaw(params, prompt, VOCAB)
        tokens: list[int] = []
        for proposed in [*drafts, *[()] * num_tokens]:
            proposal: Proposal = Lookup(tuple(proposed)) if proposed else Nothing()
            at = len(prompt) + len(tokens)
            verdict = judge.verify(
                self.rows[at : at + 1 + len(proposed)], proposal, params, at, text
            )
            tokens += [*proposed[: verdict.accepted], verdict.bonus]
        return tokens[:num_tokens]


@given(params=penalised(), prompt=TOKENS, generated=TOKENS, seed=st.integers(0, 999))
def test_a_place_is_adjusted_as_the_law_is_specified(params, prompt, generated, seed) -> None:
    """The numpy reference of the kernels has the same steps, each one float32 operation."""
    row = (np.random.default_rng(seed).standard_normal(VOCAB) * 3).astype(np.float32)
    text = TextLaw(params, prompt, VOCAB)
    for token in generated:
        text.take(token)
    ids = np.arange(VOCAB, dtype=np.int32)
    edits = reference.Edits(
        ids,
        np.array([dict(params.bias).get(token, 0.0) for token in ids.tolist()], np.float32),
        np.zeros(VOCAB, np.int32),
        np.isin(ids, prompt),
    )
    edited = reference.LawParams(
        repetition=params.repetition_penalty,
        presence=params.presence_penalty,
        frequency=params.frequency_penalty,
    )
    before = row.copy()
    expected = reference.adjusted(row, edited, edits, generated)
    found = adjusted(text.adjusted(row), params, 0)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(row, before, "the engine's own logits were changed")


@given(
    params=penalised(),
    prompt=TOKENS,
    data=st.data(),
    seed=st.integers(0, 999),
)
def test_drafts_do_not_move_a_penalised_text(params, prompt, data, seed) -> None:
    """S8: the counts at a place inside a block were those at the block's start."""
    model = Model(seed)
    plain = model.decode("coupled", params, prompt, (), 12)
    drafts = []
    at = 0
    while at < 8:  # mostly right ones, so that blocks are accepted in part and as a whole
        num = data.draw(st.integers(1, 4))
        wrong = data.draw(st.integers(0, 5))
        proposed = list(plain[at : at + num])
        if wrong < num:
            proposed[wrong] = (proposed[wrong] + 1) % VOCAB
        drafts.append(proposed)
        at += min(wrong, num) + 1
    assert model.decode("coupled", params, prompt, drafts, 12) == plain


@pytest.mark.parametrize("name", ["coupled", "ratio"])
def test_a_huge_penalty_lets_no_token_come_twice(name) -> None:
    """S8: it was ignored. Each round's drafts repeat what stands just before them."""
    params = SamplingParams(temperature=1.0, repetition_penalty=1e9, seed=4)
    model = Model(5)
    prompt = [0, 1]
    judge, text = rule(name), TextLaw(params, prompt, VOCAB)
    tokens: list[int] = []
    while len(tokens) < VOCAB - 2 - 3:
        at = 2 + len(tokens)
        proposed = tuple((tokens or prompt)[-2:])
        rows = -np.abs(model.rows[at : at + 3]) - 9
        rows[:, [*prompt, *tokens]] = -0.1  # by far the likeliest, but for the penalty
        verdict = judge.verify(rows, Lookup(proposed), params, at, text)
        tokens += [*proposed[: verdict.accepted], verdict.bonus]
    assert len(set(tokens)) == len(tokens)
    assert not set(tokens) & set(prompt)


@pytest.mark.parametrize("value", [1e30, -1e30])
@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty", "repetition_penalty"])
def test_the_largest_edits_still_leave_a_law(name, value) -> None:
    """An infinite logit is a damaged engine, and stops all that run."""
    value = 1 / value if name == "repetition_penalty" and value > 0 else abs(value)
    params = SamplingParams(temperature=1.0, top_p=0.9, **{name: value})
    text = TextLaw(params, [0], 3)
    row = np.array([9.0, -9.0, 3e38], np.float32)
    for token in (1, 2, 2):
        text.take(token)
    assert np.isfinite(adjusted(text.adjusted(row), params, 0)).all()
    verdict = rule("coupled").verify(row[None], Nothing(), params, 4, text)
    assert 0 <= verdict.bonus < 3


def test_a_forbidden_word_is_kept_out_wherever_a_block_is_cut() -> None:
    """The words' first tokens may be drafted, or emitted, in an earlier round."""
    params = SamplingParams(banned_sequences=((5, 6), (9,)))
    rows = np.zeros((8, VOCAB), np.float32)
    rows[:, 9] = 3
    for place, token in enumerate([5, 6, 5, 6, 5, 6, 7, 7]):
        rows[place, token] = 2
    rows[:, 8] = 1
    for sizes in ([1] * 8, [3, 3, 2], [8]):
        text, judge = TextLaw(params, [5], VOCAB), rule("coupled")
        tokens: list[int] = []
        for size in sizes:
            drafts = tuple([5, 8, 5, 8, 5, 8, 7, 7][len(tokens) : len(tokens) + size - 1])
            block = rows[len(tokens) : len(tokens) + size]
            verdict = judge.verify(block, Drafted(drafts), params, 1 + len(tokens), text)
            tokens += [*drafts[: verdict.accepted], verdict.bonus]
        assert tokens == [5, 8, 5, 8, 5, 8, 7, 7]


def test_a_bias_reaches_the_ids_of_a_reduced_draft() -> None:
    """S17: a draft that knows nothing of the bias is rejected again and again."""
    params = SamplingParams(logit_bias={2: 50.0, 23: 9.0})
    ids_map = np.array([7, 2, 4])
    token, _ = rule("coupled").draft_token(np.zeros(3, np.float32), params, 5, ids_map)
    assert token == 2
    row = np.zeros(4, np.float32)
    np.testing.assert_array_equal(adjusted(row, params, 0), [0, 0, 50, 0])


@pytest.mark.stat
@pytest.mark.parametrize("name", ["coupled", "ratio"])
def test_pairs_of_tokens_follow_the_penalised_law(name) -> None:
    """False alarm: 1e-6. The second token's law hangs on the first, drafted or not; the drafts are
    drawn from a law of their own."""
    params = SamplingParams(
        temperature=1.0, repetition_penalty=1.5, presence_penalty=0.8, logit_bias={2: 0.5}
    )
    vocab, prompt, num_texts = 4, [1], 2500
    rows = np.random.default_rng(1).standard_normal((3, vocab)).astype(np.float32)
    q = SparseLaw(np.arange(vocab, dtype=np.int32), np.array([0.4, 0.3, 0.2, 0.1]))

    def law_after(tokens: Sequence[int]) -> np.ndarray:
        text = TextLaw(params, prompt, vocab)
        for token in tokens:
            text.take(token)
        return law(adjusted(text.adjusted(rows[len(tokens)]), params, 1), params)

    expected = np.array([law_after([])[first] * law_after([first]) for first in range(vocab)])
    counts, random = np.zeros((vocab, vocab)), np.random.default_rng(2)
    for seed in range(num_texts):
        judge, text = rule(name), TextLaw(params, prompt, vocab)
        drafts = tuple(random.choice(vocab, 2, p=q.probs).tolist())
        seeded, tokens = replace(params, seed=seed), list[int]()
        while len(tokens) < 2:
            left = drafts[len(tokens) :]
            proposal = Drafted(left, (q,) * len(left))
            block = rows[len(tokens) : len(tokens) + 1 + len(left)]
            verdict = judge.verify(block, proposal, seeded, 1 + len(tokens), text)
            tokens += [*left[: verdict.accepted], verdict.bonus]
        counts[tokens[0], tokens[1]] += 1
    assert excess(counts.ravel(), expected.ravel()) < 1
