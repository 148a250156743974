"""Log-probabilities in every mode: rows L of the faults that users met; and rows S4 and S14.

L1 every one was 0.0 with speculation on; L2 only the first token had one; L3 they were missing
where drafts were copied from the text.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from engines.bundle import Bundle
from runtime.llm import LLM, Completion, score
from runtime.sampling.params import SamplingParams
from tests.helpers.tiny_bundle import tiny_bundle

PROMPT = [7, 8, 9, 10]
SAMPLED = SamplingParams(temperature=4.0, top_k=40, seed=5)
GREEDY = SamplingParams()
WAYS = [
    (mode, fallback, verify)
    for verify in ("coupled", "ratio")
    for mode, fallback in (("sd", "zero"), ("ssd", "zero"), ("ssd", "jit"), ("ssd", "lookup"))
]


@pytest.fixture(scope="module", params=[("ar", "zero", "coupled"), *WAYS], ids="-".join)
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    mode, fallback, verify = request.param
    path = tiny_bundle(tied=False).path
    with LLM.open(path, mode=mode, fallback=fallback, verify=verify) as opened:
        yield opened


def check(bundle: Bundle, answer: Completion) -> None:
    """Against the target's log-softmax from one pass over the whole text; three likeliest."""
    logits = score(bundle.path, "target", [*PROMPT, *answer.token_ids])[len(PROMPT) - 1 : -1]
    logits = logits.astype(np.float64)
    law = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert answer.logprobs is not None
    assert len(answer.logprobs) == len(answer.token_ids)
    for token, row, found in zip(answer.token_ids, law, answer.logprobs, strict=True):
        assert found.logprob == pytest.approx(row[token], abs=1e-4)
        assert found.rank == np.count_nonzero(row > row[token])
        assert len(found.top_ids) == len(found.top_logprobs) == 3
        np.testing.assert_allclose(found.top_logprobs, row[found.top_ids], atol=1e-4)
        np.testing.assert_allclose(found.top_logprobs, np.sort(row)[::-1][:3], atol=1e-4)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_every_token_has_the_targets_own_log_probability(llm: LLM, params) -> None:
    """L1, L2: before temperature and cuts, accepted or not."""
    answer = llm.generate(PROMPT, params, max_tokens=20, logprobs=3)
    assert len(answer.token_ids) == 20
    check(tiny_bundle(tied=False), answer)


def test_tokens_copied_from_the_text_have_theirs() -> None:
    """L3: this model repeats itself, so what stood there before is looked up and accepted."""
    bundle = tiny_bundle()
    with LLM.open(bundle.path, mode="ssd", fallback="lookup") as llm:
        answer = llm.generate(PROMPT, max_tokens=40, logprobs=3)
    assert answer.stats.num_lookup > 2
    check(bundle, answer)


def test_they_are_the_models_and_not_of_a_law_with_bans(llm: LLM) -> None:
    """Until min_tokens the stops cannot be drawn, and are as likely as ever to the model."""
    likeliest = llm.generate(PROMPT, max_tokens=1).token_ids
    answer = llm.generate(PROMPT, max_tokens=6, min_tokens=6, stop_token_ids=likeliest, logprobs=3)
    check(tiny_bundle(tied=False), answer)
    assert answer.logprobs is not None
    assert (answer.logprobs[0].top_ids[0], answer.logprobs[0].rank) == (likeliest[0], 1)


def test_log_probabilities_do_not_depend_on_the_mode(llm: LLM) -> None:
    """L1: within 1e-5 of plain decoding's, greedy, where every rule gives the same tokens."""
    with LLM.open(tiny_bundle(tied=False).path, mode="ar") as plain:
        one = plain.generate(PROMPT, max_tokens=20, logprobs=0)
    other = llm.generate(PROMPT, max_tokens=20, logprobs=0)
    assert one.logprobs is not None
    assert other.logprobs is not None
    assert other.token_ids == one.token_ids
    for ours, theirs in zip(other.logprobs, one.logprobs, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-5)
        assert len(ours.top_ids) == 0


def test_asking_for_them_does_not_change_the_text(llm: LLM) -> None:
    silent = llm.generate(PROMPT, SAMPLED, max_tokens=20)
    assert silent.logprobs is None
    assert llm.generate(PROMPT, SAMPLED, max_tokens=20, logprobs=2).token_ids == silent.token_ids


def test_sampling_is_never_silently_greedy(llm: LLM) -> None:
    """S4: with speculation on, a sampled request was decoded greedily."""
    texts = {
        llm.generate(PROMPT, SamplingParams(temperature=1.0, seed=seed), max_tokens=2).token_ids
        for seed in range(50)
    }
    assert len(texts) > 5


def test_the_seed_names_the_noise_and_greedy_has_none(llm: LLM) -> None:
    """S14."""

    def texts(temperature: float) -> set[tuple[int, ...]]:
        laws = [SamplingParams(temperature=temperature, seed=seed) for seed in range(10)]
        return {llm.generate(PROMPT, law, max_tokens=4).token_ids for law in laws}

    assert len(texts(0.0)) == 1
    assert len(texts(1.0)) >= 2
    assert texts(1.0) == texts(1.0)
