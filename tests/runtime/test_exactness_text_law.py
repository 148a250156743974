"""Penalties, biases, forbidden words and grammars: the same texts in every mode, batch and at every
failure of the draft, on ONNX Runtime with a tiny random pair."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engines.errors import UsageError
from runtime.device.cores import available_cores
from runtime.device.faulty import Fault, FaultyDevice
from runtime.device.host import HostDevice
from runtime.grammar import Grammar, GrammarCompiler
from runtime.llm import LLM, Completion
from runtime.loader import LoadedPair
from runtime.placement import Placement
from runtime.request import GenerateOptions
from runtime.sampling.params import SamplingParams
from runtime.settings import Settings
from runtime.spec.fallback import Fallback
from tests.helpers.tiny_bundle import tiny_bundle

MODES = ("ar", "sd", "ssd")
VOCAB, EOS = 320, 2
PERSON = Grammar.json_schema(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 6},
            "age": {"type": "integer", "maximum": 99},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    }
)
GRAMMARS = {
    "schema": PERSON,
    "regex": Grammar.regex(r"([a-z]{2,5} ){3}end"),
    "lark": Grammar.lark('start: "x" start "y" | "z"'),
    "choice": Grammar.choice(["yes", "no", "maybe"]),
}
LAWS = {
    "greedy": SamplingParams(),
    "sampled": SamplingParams(temperature=1.0, seed=3),
    "cut": SamplingParams(temperature=1.0, seed=4, top_k=30, top_p=0.9),
    "repetition": SamplingParams(repetition_penalty=1.4),
    "counts": SamplingParams(1.0, seed=5, presence_penalty=0.7, frequency_penalty=0.4),
    "bias": SamplingParams(1.0, seed=6, logit_bias={265: -20.0, 40: 3.0, 300: 9.0}),
    "all": SamplingParams(
        0.8, 40, 0.95, 7, 0.01, 1.2, -0.3, 0.2, logit_bias={100: 2.0, 101: 2.5, 319: -1e30}
    ),
}


def told(answer: Completion) -> tuple[object, ...]:
    return answer.token_ids, answer.text, answer.finish_reason, answer.stop_reason


def prompt_of(number: int) -> list[int]:
    return np.random.default_rng(number).integers(3, VOCAB, 5 + 9 * number).tolist()


class Everywhere:
    """The LLMs of each mode, and of just-in-time and looked-up drafts; opened once."""

    def __init__(self, opened: ExitStack) -> None:
        self._opened = opened
        self._llms: dict[str, list[LLM]] = {}

    def llms(self, verify: str = "coupled") -> list[LLM]:
        """Plain decoding first."""
        if verify not in self._llms:
            ways: list[tuple[str, dict[str, Any]]] = [(mode, {}) for mode in MODES]
            ways += [("ssd", {"fallback": each}) for each in ("jit", "lookup")]
            path = tiny_bundle(max_batch=1).path
            self._llms[verify] = [
                self._opened.enter_context(LLM.open(path, mode=mode, verify=verify, **more))
                for mode, more in ways
            ]
        return self._llms[verify]

    def __call__(
        self,
        params: SamplingParams,
        options: GenerateOptions,
        *,
        verify: str = "coupled",
        number: int = 1,
    ) -> list[Completion]:
        prompt = prompt_of(number)
        return [llm.generate(prompt, params, **options) for llm in self.llms(verify)]


@pytest.fixture(scope="module")
def everywhere() -> Iterator[Everywhere]:
    with ExitStack() as opened:
        yield Everywhere(opened)


@pytest.mark.parametrize("law", LAWS)
def test_edited_logits_give_the_same_text_in_every_mode(everywhere, law) -> None:
    """S7: a bias reached the bonus token alone; S8: penalties did not count the block's tokens."""
    answers = everywhere(LAWS[law], {"max_tokens": 90, "ignore_eos": True})
    assert len({told(each) for each in answers}) == 1
    assert len(answers[0].token_ids) == 90
    plain = replace(
        LAWS[law],
        repetition_penalty=1.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        logit_bias=(),
    )
    ar = everywhere.llms()[0]
    without = ar.generate(prompt_of(1), plain, max_tokens=90, ignore_eos=True)
    assert (told(without) == told(answers[0])) == (law in ("greedy", "sampled", "cut"))


def test_a_huge_penalty_ends_a_loop_at_once(everywhere) -> None:
    """S8, S10: the greedy text says the same again and again."""
    options: GenerateOptions = {"max_tokens": 32, "ignore_eos": True}
    assert len(set(everywhere(SamplingParams(), options)[0].token_ids)) < 16
    for answer in everywhere(SamplingParams(repetition_penalty=1e9), options):
        assert len(set(answer.token_ids)) == 32


@pytest.mark.parametrize(
    ("grammar", "law"),
    [*(("schema", law) for law in LAWS), ("regex", "cut"), ("lark", "all"), ("choice", "sampled")],
)
def test_a_grammar_gives_the_same_text_in_every_mode(everywhere, grammar, law) -> None:
    """K10: drafted tokens outside of the grammar, masks of the wrong place, a state moved by
    tokens that were rejected."""
    answers = everywhere(LAWS[law], {"max_tokens": 120, "grammar": GRAMMARS[grammar]})
    assert len({told(each) for each in answers}) == 1
    if answers[0].finish_reason == "stop" and grammar == "schema":
        assert set(json.loads(answers[0].text)) == {"name", "age", "tags"}
    if grammar == "choice":
        assert answers[0].text in ("yes", "no", "maybe")


def is_prefix(grammar: Grammar, answer: Completion) -> bool:
    bundle = tiny_bundle(max_batch=1)
    state = GrammarCompiler(bundle.tokenizer_path.read_bytes(), VOCAB, (EOS,)).start(grammar)
    for token in answer.token_ids:
        allowed = state.allowed(VOCAB)
        if allowed is None or not allowed[token]:
            return False
        state.take(token)
    allowed = state.allowed(VOCAB)
    assert allowed is not None
    return answer.finish_reason != "stop" or answer.stop_reason is not None or bool(allowed[EOS])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("verify", ["coupled", "ratio"])
def test_whatever_ends_it_a_text_is_the_beginning_of_what_was_asked_for(
    everywhere, verify, seed
) -> None:
    """Budgets and stops cut inside of blocks; the ratio rule's residual kept what p forbids."""
    options: list[GenerateOptions] = [
        {"max_tokens": 1 + 6 * seed},
        {"max_tokens": 60, "stop": '"'},
        {"max_tokens": 60, "stop_token_ids": [64, 65, 66, 67]},
        {"max_tokens": 120},
    ]
    params = SamplingParams(temperature=1.5, seed=seed)
    for each in options:
        each["grammar"] = PERSON
        answers = everywhere(params, each, verify=verify, number=seed % 3)
        assert all(is_prefix(PERSON, answer) for answer in answers)
        if verify == "coupled":
            assert len({told(answer) for answer in answers}) == 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("max_batch", [2, 3])
def test_rows_with_and_without_a_grammar_share_a_batch(mode, max_batch) -> None:
    """Slots are left, taken and moved into: a state that stays behind masks another's text."""
    bundle = tiny_bundle(max_batch=3)
    cases: list[tuple[SamplingParams, GenerateOptions]] = [
        (law, {"max_tokens": 20 + 11 * place})
        for place, law in enumerate([*LAWS.values(), *LAWS.values()])
    ]
    for place, grammar in enumerate(GRAMMARS.values()):
        cases[2 * place][1]["grammar"] = grammar
    cases[5][1]["bad_words"] = ["e", " the"]
    alone = []
    with LLM.open(bundle.path, mode="ar", max_batch=1) as llm:
        for place, (law, options) in enumerate(cases):
            alone.append(told(llm.generate(prompt_of(place % 3), law, **options)))
    with LLM.open(bundle.path, mode=mode, max_batch=max_batch) as llm:
        answers = [
            llm.intake.answer(prompt_of(place % 3), law, lambda _delta: None, options)
            for place, (law, options) in enumerate(cases)
        ]
        for _ in llm.engine.steps(answers):
            pass
        assert [told(llm.completion_of(each)) for each in answers] == alone


def test_forbidden_words_do_not_come(everywhere) -> None:
    for llm in everywhere.llms():
        free = llm.generate(prompt_of(1), max_tokens=60, ignore_eos=True)
        words = [llm.tokenizer.decode([token]) for token in free.token_ids[1:40:6]]
        words = [word for word in words if word and "\ufffd" not in word]
        held = llm.generate(prompt_of(1), max_tokens=60, ignore_eos=True, bad_words=words)
        for word in words:
            ids = tuple(llm.tokenizer.encode(word))
            pairs = zip(*(held.token_ids[i:] for i in range(len(ids))), strict=False)
            assert ids not in set(pairs)
        assert held.token_ids != free.token_ids


def test_choices_are_what_requests_with_their_seeds_are() -> None:
    params = SamplingParams(temperature=1.0, seed=2**64 - 1, repetition_penalty=1.1)
    with LLM.open(tiny_bundle(max_batch=3).path, mode="ssd") as llm:
        for options in ({}, {"grammar": PERSON}):
            choices = llm.choices(prompt_of(2), params, n=4, max_tokens=30, **options)
            for seed, choice in zip((2**64 - 1, 0, 1, 2), choices, strict=True):
                single = llm.generate(
                    prompt_of(2), replace(params, seed=seed), max_tokens=30, **options
                )
                assert told(choice) == told(single)
            assert len({choice.token_ids for choice in choices}) > 1


def test_log_probabilities_are_the_models_own_whatever_is_forbidden(everywhere) -> None:
    """L1: and one entry a token at all places of a block."""
    options: GenerateOptions = {"max_tokens": 40, "grammar": PERSON, "logprobs": 2}
    expected, *others = everywhere(SamplingParams(), options)
    assert expected.logprobs is not None
    for found in others:
        assert found.logprobs is not None
        assert len(found.logprobs) == len(found.token_ids)
        for one, other in zip(found.logprobs, expected.logprobs, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
            assert one.top_ids.tolist() == other.top_ids.tolist()
    assert any(each.rank > 2 for each in expected.logprobs), "nothing likelier was forbidden"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"grammar": PERSON, "min_tokens": 3}, "min-tokens cannot go with a grammar"),
        ({"grammar": PERSON, "ignore_eos": True}, "ignore-eos cannot go with a grammar"),
        ({"grammar": PERSON, "bad_words": ["x"]}, "bad-words cannot go with a grammar"),
        ({"grammar": {"type": "object"}}, "expected a Grammar"),
        ({"grammar": Grammar.regex("(")}, "cannot be used"),
        ({"ignore_eos": 1}, "ignore-eos is 1"),
        ({"bad_words": [""]}, "bad-words has ''"),
        ({"bad_words": 3}, "bad-words is 3"),
        ({"best_of": 2}, "unknown option 'best_of'"),
        ({"n": 2}, "unknown option 'n'"),
    ],
    ids=str,
)
def test_what_cannot_be_served_is_refused_by_name(everywhere, options, reason) -> None:
    llm = everywhere.llms()[0]
    for call in (llm.generate, llm.stream):
        with pytest.raises(UsageError, match=reason):
            call(prompt_of(1), **options)
    with pytest.raises(UsageError, match="vocabulary ends at 319"):
        llm.generate(prompt_of(1), SamplingParams(logit_bias={320: 1.0}))
    assert llm.generate(prompt_of(1), max_tokens=2).token_ids


@pytest.mark.usefixtures("may_degrade")
@pytest.mark.parametrize("hangs", [False, True], ids=["fails", "hangs"])
def test_a_draft_that_is_lost_takes_no_place_in_the_grammar_along(everywhere, hangs) -> None:
    """The target's work is queued anew on another stream: a round that is judged twice, or not at
    all, would leave the state and the penalties' counts beside the text."""
    params = SamplingParams(temperature=1.0, seed=9, repetition_penalty=1.2)
    options: GenerateOptions = {"max_tokens": 60, "grammar": GRAMMARS["regex"]}
    expected = everywhere(params, options)[0]
    bundle, cores = tiny_bundle(max_batch=1), available_cores()
    for number in (1, 3):
        fault = Fault("draft", "prepare", number, stalls=hangs)
        placement = Placement("ssd", cores[:1], cores[-1:])
        pair = LoadedPair(
            bundle,
            placement,
            verify="coupled",
            num_draft=4,
            num_branches=6,
            device=FaultyDevice(HostDevice(close_timeout_s=0.3), [fault]),
            draft_timeout_s=1.0 if hangs else 60.0,
        )
        settings = Settings(placement, "coupled", 4, 6, 1, Fallback.ZERO, 1.0, None)
        with LLM(bundle, pair, settings, None) as llm:
            assert told(llm.generate(prompt_of(1), params, **options)) == told(expected)
            assert fault.has_struck
