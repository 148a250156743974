"""Losslessness on ONNX Runtime with tiny random pairs, where the limits are tight."""

from __future__ import annotations

import pytest

from runtime.llm import LLM
from runtime.loader import LoadedPair
from runtime.placement import Placement
from runtime.request import Request
from runtime.sampling.params import SamplingParams
from tests.helpers.tiny_bundle import tiny_bundle


def decode(bundle, mode, prompts, temperature, max_tokens=1000):
    limits = bundle.manifest.limits
    pair = LoadedPair(
        bundle,
        Placement(mode, (0,), (0,)),
        verify="coupled",
        num_draft=limits.num_draft,
        num_branches=limits.max_branches,
    )
    try:
        requests = [
            Request(
                prompt,
                SamplingParams(temperature=temperature, seed=7),
                max_tokens,
                (),
                limits.max_len,
            )
            for prompt in prompts
        ]
        pair.decoder.run(requests)
        return [request.generated for request in requests]
    finally:
        pair.close()


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
