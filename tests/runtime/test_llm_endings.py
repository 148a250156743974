"""Where a text ends, in every mode and with every fallback: rows E of the faults that users met.

What each must give is worked out from plain decoding's own tokens. Rows E1, E6, E7, E9 and E11
are tested on hand-made blocks as well, in test_request.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engines.errors import BundleIncompatibleError, UsageError
from runtime.llm import LLM
from runtime.sampling.params import SamplingParams
from tests.helpers.tiny_bundle import tiny_bundle

NUM_DRAFT = 4
PROMPT = [7, 8, 9, 10]
SAMPLED = SamplingParams(temperature=4.0, seed=1)
"""The pair then agrees on two of three tokens, so blocks are long."""
WAYS = [("ar", "zero"), ("sd", "zero"), ("ssd", "zero"), ("ssd", "jit"), ("ssd", "lookup")]


@pytest.fixture(scope="module", params=WAYS, ids="-".join)
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    mode, fallback = request.param
    with LLM.open(tiny_bundle(tied=False).path, mode=mode, fallback=fallback) as opened:
        yield opened


@pytest.fixture(scope="module")
def plain() -> tuple[int, ...]:
    """Forty sampled tokens of plain decoding, most of them different."""
    with LLM.open(tiny_bundle(tied=False).path, mode="ar") as opened:
        tokens = opened.generate(PROMPT, SAMPLED, max_tokens=40).token_ids
    assert len(tokens) == 40
    assert len(set(tokens)) > 20
    return tokens


def firsts(tokens: tuple[int, ...], limit: int) -> list[int]:
    """Places below ``limit`` of tokens that do not occur before."""
    return [i for i in range(limit) if tokens[i] not in tokens[:i]]


def test_a_stop_token_at_any_place_of_a_block_ends_the_text_there(llm: LLM, plain) -> None:
    """E1, E4: the block goes on behind it, and the law of the stop is not touched."""
    for place in firsts(plain, 14):
        stop_ids = [plain[place], *plain[place + 1 :]]
        answer = llm.generate(PROMPT, SAMPLED, max_tokens=40, stop_token_ids=stop_ids)
        assert answer.token_ids == plain[:place]
        assert (answer.finish_reason, answer.stop_reason) == ("stop", plain[place])
        assert answer.stats.num_tokens == place


def test_a_stop_token_that_only_the_draft_proposes_ends_nothing(llm: LLM, plain) -> None:
    """E3: here every token that the target does not take is a stop."""
    stop_ids = sorted(set(range(320)) - set(plain))
    answer = llm.generate(PROMPT, SAMPLED, max_tokens=40, stop_token_ids=stop_ids)
    assert (answer.token_ids, answer.finish_reason) == (plain, "length")


def test_the_earlier_of_stop_and_budget_wins_and_a_tie_is_a_stop(llm: LLM, plain) -> None:
    """E6."""
    place = firsts(plain, 14)[-1]
    for budget, expected in ((place, "length"), (place + 1, "stop"), (place + 2, "stop")):
        answer = llm.generate(PROMPT, SAMPLED, max_tokens=budget, stop_token_ids=[plain[place]])
        assert (answer.token_ids, answer.finish_reason) == (plain[:place], expected)


def test_a_stop_string_cuts_everything_at_one_place(llm: LLM, plain) -> None:
    """E7: text, ids, log-probabilities and usage; nor is the string, or more, ever streamed."""
    text = llm.tokenizer.decode(plain)
    for start, size in ((9, 1), (12, 3), (17, 9)):
        stop = text[start : start + size]
        shown: list[str] = []
        answer = llm.generate(
            PROMPT, SAMPLED, max_tokens=40, stop=[stop, "never"], logprobs=2, on_text=shown.append
        )
        assert answer.text == text[: text.index(stop)] == "".join(shown)
        assert (answer.finish_reason, answer.stop_reason) == ("stop", stop)
        assert answer.logprobs is not None
        num_kept = len(answer.token_ids)
        assert num_kept == len(answer.logprobs) == answer.stats.num_tokens
        assert answer.token_ids == plain[:num_kept]
        assert llm.tokenizer.decode(plain[:num_kept]).startswith(answer.text)
        assert not llm.tokenizer.decode(plain[: num_kept - 1]).startswith(answer.text)


def test_stop_strings_do_not_change_a_text_without_them(llm: LLM, plain) -> None:
    answer = llm.generate(PROMPT, SAMPLED, max_tokens=40, stop=["never", "in it"])
    assert (answer.token_ids, answer.finish_reason) == (plain, "length")
    assert answer.text == llm.tokenizer.decode(plain)


@pytest.mark.parametrize("max_tokens", range(1, NUM_DRAFT + 3))
def test_a_budget_is_met_exactly(llm: LLM, plain, max_tokens: int) -> None:
    """E9: a budget of one gave four tokens."""
    answer = llm.generate(PROMPT, SAMPLED, max_tokens=max_tokens)
    assert (answer.token_ids, answer.finish_reason) == (plain[:max_tokens], "length")


def test_only_tokens_up_to_the_end_count_as_emitted(llm: LLM, plain) -> None:
    """E11: verified tokens behind the stop made speculation look better than it is."""
    place = firsts(plain, 14)[-1]
    stats = llm.generate(PROMPT, SAMPLED, stop_token_ids=[plain[place]]).stats
    assert stats.num_emitted == place + 1
    blocks = sum((k + 1) * count for k, count in enumerate(stats.histogram))
    assert stats.num_emitted + stats.num_discarded == blocks


@pytest.mark.parametrize("ending", ["stop token", "budget", "stop string"])
@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_nothing_is_drafted_after_the_end(way: tuple[str, str], ending: str, plain) -> None:
    """E12. One round is queued before the end is known, and no more; the workers find nothing to do
    in it but for a stop string, which only the host sees. Closing drops what had not begun."""
    mode, fallback = way
    bundle = tiny_bundle(tied=False)
    with LLM.open(bundle.path, mode=mode, fallback=fallback, trace=True) as llm:
        options = {
            "stop token": {"stop_token_ids": [plain[9]]},
            "budget": {"max_tokens": 6},
            "stop string": {"stop": llm.tokenizer.decode(plain[9:10])},
        }
        stats = llm.generate(PROMPT, SAMPLED, **options[ending]).stats
    assert llm.timeline is not None
    labels = [span.label for span in llm.timeline.spans]
    assert stats.num_rounds > 1
    assert labels.count("verify") - stats.num_rounds in (0, 1)
    assert labels.count("draft") - stats.num_rounds in (
        (0, 1) if mode == "sd" else (-stats.num_rounds,)
    )
    assert labels.count("prepare") - stats.num_rounds in (
        (-1, 0, 1) if mode == "ssd" else (-stats.num_rounds,)
    )


@pytest.mark.parametrize("room", range(1, NUM_DRAFT + 3))
def test_near_the_end_of_the_context_nothing_is_written_beyond_it(room: int, llm: LLM) -> None:
    """E13: drafts would reach past the last row; TensorRT drops such writes silently."""
    max_len = llm.limits.max_len
    prompt = [3 + i % 300 for i in range(max_len - room)]
    whole = llm.generate(prompt, SAMPLED, max_tokens=50)
    assert (len(whole.token_ids), whole.finish_reason) == (room, "context")
    exact = llm.generate(prompt, SAMPLED, max_tokens=room)
    assert (exact.token_ids, exact.finish_reason) == (whole.token_ids, "length")
    # Cut off by the context or not: the tokens are those of a longer text.
    with LLM.open(tiny_bundle(tied=False, max_len=192).path, mode="ar") as roomy:
        assert roomy.generate(prompt, SAMPLED, max_tokens=room).token_ids == whole.token_ids


def test_more_drafts_than_the_bundle_was_built_for_are_refused_at_load() -> None:
    """E14: an engine built for none asserted at the first request."""
    bundle = tiny_bundle(num_draft=0, max_branches=0)
    with pytest.raises(BundleIncompatibleError, match="--num-draft"):
        LLM.open(bundle.path, mode="sd", num_draft=4)
    with pytest.raises(UsageError, match="--num-draft 1"):
        LLM.open(bundle.path, mode="ssd")


def test_before_min_tokens_no_stop_has_any_probability(llm: LLM, plain) -> None:
    """Ignoring a stop that was drawn would leave it in the text, and its law beside the model's:
    here all stops are banned in the draw itself, the same in every mode."""
    stop_ids = list(set(plain[:8]))
    free = llm.generate(PROMPT, SAMPLED, max_tokens=30, stop_token_ids=stop_ids)
    assert free.token_ids == ()
    held = llm.generate(PROMPT, SAMPLED, max_tokens=30, stop_token_ids=stop_ids, min_tokens=12)
    assert len(held.token_ids) >= 12
    assert not set(held.token_ids) & set(stop_ids)
    with LLM.open(tiny_bundle(tied=False).path, mode="ar") as reference:
        expected = reference.generate(
            PROMPT, SAMPLED, max_tokens=30, stop_token_ids=stop_ids, min_tokens=12
        )
    assert held.token_ids == expected.token_ids


def test_min_tokens_is_exact(llm: LLM, plain) -> None:
    """A stop right behind it ends the text, one right before its end does not."""
    place = firsts(plain, 14)[-1]
    stop_ids = [plain[place]]
    for fewest in (1, place - 1, place):
        answer = llm.generate(PROMPT, SAMPLED, stop_token_ids=stop_ids, min_tokens=fewest)
        assert answer.token_ids == plain[:place]
    longer = llm.generate(
        PROMPT, SAMPLED, max_tokens=20, stop_token_ids=stop_ids, min_tokens=place + 1
    )
    assert len(longer.token_ids) > place
    assert longer.token_ids[:place] == plain[:place]
    assert longer.token_ids[place] != plain[place]


@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_the_ratio_rule_heeds_the_same_ends(way: tuple[str, str]) -> None:
    """Its tokens depend on the drafts; where a text may end does not."""
    mode, fallback = way
    path = tiny_bundle(tied=False).path
    with LLM.open(path, mode=mode, fallback=fallback, verify="ratio") as llm:
        free = llm.generate(PROMPT, SAMPLED, max_tokens=30).token_ids
        stop_ids = [*set(free[2:9]), 2]
        held = llm.generate(PROMPT, SAMPLED, max_tokens=12, stop_token_ids=stop_ids, min_tokens=12)
        assert (len(held.token_ids), held.finish_reason) == (12, "length")
        assert not set(held.token_ids) & set(stop_ids)
        cut = llm.generate(PROMPT, SAMPLED, max_tokens=30, stop_token_ids=stop_ids)
        assert not set(cut.token_ids) & set(stop_ids)
        for budget in range(1, NUM_DRAFT + 3):
            assert len(llm.generate(PROMPT, SAMPLED, max_tokens=budget).token_ids) == budget


def test_greedy_texts_heed_min_tokens(llm: LLM) -> None:
    """An engine's own choice knows of no ban."""
    first = llm.generate(PROMPT, max_tokens=1).token_ids[0]
    held = llm.generate(PROMPT, max_tokens=9, stop_token_ids=[first], min_tokens=5)
    assert len(held.token_ids) >= 5
    assert first not in held.token_ids


def test_a_stop_string_within_min_tokens_is_text(llm: LLM, plain) -> None:
    text = llm.tokenizer.decode(plain)
    early = llm.tokenizer.decode(plain[2:4])
    answer = llm.generate(PROMPT, SAMPLED, max_tokens=40, stop=early, min_tokens=6)
    assert answer.text.startswith(llm.tokenizer.decode(plain[:6]))
    later = text.find(early, len(llm.tokenizer.decode(plain[:6])))
    assert answer.text == (text if later < 0 else text[:later])
