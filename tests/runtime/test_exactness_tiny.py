"""Losslessness on ONNX Runtime with tiny random pairs, where the limits are tight."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

from engines.errors import UsageError
from plugins.ort.library import SWITCH
from runtime.device.host import HostDevice
from runtime.llm import LLM
from runtime.loader import LoadedPair
from runtime.placement import Placement
from runtime.request import Request
from runtime.sampling.params import SamplingParams
from runtime.spec.drafter import Drafter
from runtime.spec.fallback import Fallback
from tests.helpers.tiny_bundle import tiny_bundle


@contextmanager
def loaded(bundle, mode, **options):
    """The bundle's pair on a checked device."""
    limits = bundle.manifest.limits
    settings = {"num_draft": limits.num_draft, "num_branches": limits.max_branches, **options}
    device = HostDevice(check=True)
    placement = Placement(mode, (0,), (0,))
    pair = LoadedPair(bundle, placement, verify="coupled", device=device, **settings)
    try:
        yield pair
    finally:
        pair.close()


def decode(bundle, mode, prompts, temperature, max_tokens=1000, **options):
    params = SamplingParams(temperature=temperature, seed=7)
    max_len = bundle.manifest.limits.max_len
    requests = [Request(prompt, params, max_tokens, (), max_len) for prompt in prompts]
    with loaded(bundle, mode, **options) as pair:
        pair.scheduler.run(requests)
    return [request.generated for request in requests]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("max_len", "num_draft", "lengths"),
    [(50, 2, (48,)), (100, 4, (97,)), (70, 1, (5, 64)), (32, 8, (1, 31, 17)), (2, 3, (1,))],
)
def test_modes_agree_up_to_the_end_of_the_context(max_len, num_draft, lengths, temperature):
    """Prompt padding, drafted tokens and branches all reach past the text near its end."""
    bundle = tiny_bundle(max_len=max_len, num_draft=num_draft, max_batch=len(lengths))
    prompts = [[(i * 7) % 320 for i in range(length)] for length in lengths]
    plain = [decode(bundle, "ar", [prompt], temperature)[0] for prompt in prompts]
    assert [len(tokens) for tokens in plain] == [max_len - length for length in lengths]
    for mode in ("ar", "sd", "ssd"):
        assert decode(bundle, mode, prompts, temperature) == plain
    for fallback in (Fallback.JIT, Fallback.LOOKUP):
        assert decode(bundle, "ssd", prompts, temperature, fallback=fallback) == plain
        both = {"fallback": fallback, "drafter": Drafter.BOTH}
        assert decode(bundle, "ssd", prompts, temperature, **both) == plain
    for drafter in (Drafter.BOTH, Drafter.LOOKUP):
        assert decode(bundle, "sd", prompts, temperature, drafter=drafter) == plain
    assert decode(bundle, "ssd", prompts, temperature, max_batch=1) == plain


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kernels", ["on", "off"])
def test_modes_agree_with_our_kernels_and_without(monkeypatch, kernels, temperature):
    """The two round differently, so each is compared with its own plain decoding."""
    monkeypatch.setenv(SWITCH, kernels)
    bundle = tiny_bundle(precision="int8", max_len=120, num_draft=3)
    prompts = [[(i * 7) % 320 for i in range(length)] for length in (1, 9, 70)]
    plain = [decode(bundle, "ar", [prompt], temperature)[0] for prompt in prompts]
    for mode in ("ar", "sd", "ssd"):
        assert decode(bundle, mode, prompts, temperature) == plain


@pytest.mark.parametrize("num_draft", range(1, 9))
def test_two_hundred_greedy_tokens_are_equal_for_every_depth(num_draft):
    """G2: another system diverged at K = 4."""
    bundle = tiny_bundle(max_len=256, num_draft=8, max_batch=1)
    plain = decode(bundle, "ar", [[5, 6, 7]], 0.0, 200)
    for mode in ("sd", "ssd"):
        assert decode(bundle, mode, [[5, 6, 7]], 0.0, 200, num_draft=num_draft) == plain
    assert len(plain[0]) == 200


def mixed_requests(max_len: int) -> list[Request]:
    """Eleven texts: greedy and sampling, short and long, cut by every kind of end."""
    random = np.random.default_rng(5)
    laws = [
        SamplingParams(),
        SamplingParams(temperature=0.7, seed=1),
        SamplingParams(temperature=1.0, seed=2, top_k=40),
        SamplingParams(temperature=1.0, seed=3, top_p=0.9, min_p=0.02),
    ]
    lengths = (1, 3, 70, 12, 130, 2, 30, 65, 9, 150, 20)
    return [
        Request(
            random.integers(0, 320, length).tolist(),
            laws[row % len(laws)],
            8 + 6 * (row % 5),
            (17, 200) if row % 3 else (),
            max_len,
            min_tokens=5 if row % 4 == 1 else 0,
            num_logprobs=2 if row % 5 == 2 else None,
        )
        for row, length in enumerate(lengths)
    ]


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
@pytest.mark.parametrize(
    ("mode", "fallback", "drafter"),
    [
        ("ar", "zero", "model"),
        ("sd", "zero", "model"),
        ("sd", "zero", "both"),
        ("sd", "zero", "lookup"),
        ("ssd", "zero", "both"),
        ("ssd", "jit", "model"),
        ("ssd", "jit", "both"),
        ("ssd", "lookup", "model"),
    ],
)
def test_texts_that_come_and_go_in_a_batch_of_eight_are_what_each_is_alone(
    mode, fallback, drafter, precision
):
    """Joins, leaves, chunked prompts between rounds and compaction, through real engines."""
    bundle = tiny_bundle(precision=precision, max_batch=8)
    max_len = bundle.manifest.limits.max_len
    alone = mixed_requests(max_len)
    with loaded(bundle, "ar", max_batch=1) as pair:
        for request in alone:
            pair.scheduler.run([request])
    together = mixed_requests(max_len)
    drafts = {"fallback": Fallback(fallback), "drafter": Drafter(drafter)}
    with loaded(bundle, mode, **drafts) as pair:
        tickets = []
        for row, request in enumerate(together):
            tickets.append(pair.scheduler.submit(request))
            for _ in range(row % 3):
                pair.scheduler.step()
        cancelled = pair.scheduler.submit(mixed_requests(max_len)[4])
        pair.scheduler.step()
        pair.scheduler.cancel(cancelled)
        while pair.scheduler.step():
            pass
        assert pair.scheduler.num_free == 8
    for ticket, request in zip(tickets, alone, strict=True):
        assert ticket.request.generated == request.generated
        assert ticket.request.finish_reason is request.finish_reason
        for found, expected in zip(ticket.request.logprobs, request.logprobs, strict=True):
            assert found.logprob == pytest.approx(expected.logprob, abs=1e-5)
            assert found.top_ids.tolist() == expected.top_ids.tolist()


def test_the_offline_api_answers_alike_in_every_mode_and_thread_count():
    answers = set()
    bundle = tiny_bundle(max_batch=1)
    for mode in ("ar", "sd", "ssd"):
        with LLM.open(bundle.path, mode=mode) as llm:
            pieces: list[str] = []
            prompt = llm.encode("hello world", chat=True)
            params = SamplingParams(temperature=0.9, seed=1, top_k=40, top_p=0.95)
            answer = llm.generate(prompt, params, max_tokens=40, on_text=pieces.append)
            assert answer.text == "".join(pieces)
            assert answer.mode == llm.mode
            answers.add((answer.text, answer.token_ids, answer.finish_reason))
    assert len(answers) == 1


def test_a_bundle_without_a_draft_looks_its_drafts_up():
    """In ``sd``, where nothing says otherwise; the same tokens with a draft that is left unloaded,
    and a text that repeats itself must be copied from: proposing nothing would be exact, too."""
    alone, params = tiny_bundle(max_batch=1, has_draft=False), SamplingParams()
    answers = {}
    for bundle, mode, drafter in (
        (alone, "ar", "auto"),
        (alone, "sd", "auto"),
        (alone, "sd", "lookup"),
        (tiny_bundle(max_batch=1), "sd", "lookup"),
    ):
        with LLM.open(bundle.path, mode=mode, drafter=drafter) as llm:
            answer = llm.generate([5, 6, 7, 8] * 12, params, max_tokens=100)
            answers[bundle.path, mode, drafter] = answer.token_ids
            sources = answer.stats.sources
            assert set(sources) <= ({"none"} if mode == "ar" else {"none", "lookup"})
            assert mode == "ar" or sources["lookup"].num_accepted > 0
            assert mode == "ar" or "draft" not in str(llm.memory_plan.as_record())
    assert len(set(answers.values())) == 1


def test_a_bundle_without_a_draft_says_what_it_can_do():
    alone = tiny_bundle(max_batch=1, has_draft=False)
    with LLM.open(alone.path, mode="sd") as llm:
        assert "looked up" in llm.note
    for options, words in (
        ({"mode": "ssd"}, "ssd prepares outcomes with a draft and this bundle has none"),
        ({"mode": "sd", "drafter": "both"}, "--drafter both needs a draft model"),
        ({"mode": "auto", "drafter": "model"}, "--drafter model needs a draft model"),
    ):
        with pytest.raises(UsageError, match=words):
            LLM.open(alone.path, **options)
