"""Load on a server: who asks when, what is counted, and that a fault that does harm is seen."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import UsageError
from runtime.bench.serving import faults
from runtime.bench.serving.client import Ask, Outcome, Reading, ask, lines_of
from runtime.bench.serving.command import counters
from runtime.bench.serving.figures import (
    Run,
    counters_of,
    details_of,
    figures_of,
    most_in_a_second,
    percentile,
    rounds_of,
)
from runtime.bench.serving.load import Level, Ran, arrivals
from runtime.bench.serving.prompts import prompts_of
from runtime.bench.serving.report import ServingFigures
from runtime.cli.entry import main
from runtime.spec.fallback import ProposalKind
from runtime.spec.plan import RoundReport, RowReport
from tests.runtime.serve.fake_engines import ANSWER
from tests.runtime.serve.house import House

ABOUT = Ask("fake", max_tokens=20)
SAMPLE = 'vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 3.0\n'
DONE = Outcome(
    0.5,
    1.0,
    0.25,
    (0.25, 0.5),
    num_prompt_tokens=7,
    num_tokens=4,
    text="abcd",
    finish_reason="stop",
)


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=30), st.sampled_from([0, 50, 90, 99, 100]))
def test_percentiles_are_numpys(values: list[float], share: int) -> None:
    assert percentile(values, share) == pytest.approx(float(np.percentile(values, share)))


@given(st.integers(1, 50), st.floats(0.1, 100), st.integers(0, 9))
def test_arrivals_come_in_order_at_the_rate_and_again_for_a_seed(
    num: int, rate: float, seed: int
) -> None:
    times = arrivals(num, rate, seed)
    assert times == sorted(times) == arrivals(num, rate, seed)
    assert times[-1] == pytest.approx(num / rate)


def test_gaps_of_an_open_loop_are_not_all_alike() -> None:
    """Poisson: their standard deviation is their mean."""
    gaps = np.diff(arrivals(4000, 10.0, 3))
    assert np.std(gaps) == pytest.approx(np.mean(gaps), rel=0.1)


def test_figures_have_the_keys_of_vllms_benchmark() -> None:
    failed = replace(DONE, error="HTTP 500")
    before = {"vllm:spec_decode_num_drafts": 10.0, "vllm:spec_decode_num_draft_tokens": 20.0}
    after = {
        "vllm:spec_decode_num_drafts": 14.0,
        "vllm:spec_decode_num_draft_tokens": 28.0,
        "vllm:spec_decode_num_accepted_tokens": 6.0,
        "vllm:spec_decode_num_accepted_tokens_per_pos[0]": 4.0,
        "vllm:spec_decode_num_accepted_tokens_per_pos[1]": 2.0,
    }
    run = figures_of(Level(concurrency=2), Ran((DONE, DONE, failed), 2.0, 2), before, after)
    expected = {
        "duration": 2.0,
        "completed": 2,
        "failed": 1,
        "total_input_tokens": 14,
        "total_output_tokens": 8,
        "request_throughput": 1.0,
        "output_throughput": 4.0,
        "total_token_throughput": 11.0,
        "max_concurrent_requests": 2,
        "mean_ttft_ms": 250.0,
        "p99_ttft_ms": 250.0,
        "median_tpot_ms": 250.0,
        "median_itl_ms": 375.0,
        "mean_e2el_ms": 1000.0,
        "spec_decode_acceptance_rate": 75.0,
        "spec_decode_acceptance_length": 2.5,
        "spec_decode_num_drafts": 4,
        "spec_decode_per_position_acceptance_rates": [1.0, 0.5],
    }
    assert {name: run[name] for name in expected} == expected
    json.dumps(run.keys, allow_nan=False)
    assert set(details_of(Ran((failed,), 1.0, 1))) == {
        "input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times",
        "generated_texts", "errors",
    }  # fmt: skip


def test_tokens_a_round_are_over_all_rounds_and_one_lucky_proposal_is_not_all_of_them() -> None:
    """One proposal whose 2 tokens were accepted, among 99 plain rounds, was shown as 3.00."""

    async def run() -> Run:
        house = House()
        plain = RowReport(0, ProposalKind.NONE, 0, 0, None, num_emitted=1)
        lucky = RowReport(1, ProposalKind.JIT, 2, 2, False, num_emitted=3)
        async with house.client() as client:
            house.rounds(RoundReport(1, (lucky,)))  # before: not of this level
            before = await counters(client)
            for number in range(2, 35):
                house.rounds(RoundReport(number, (plain, plain, plain)))
            house.rounds(RoundReport(35, (lucky,)))
            after = await counters(client)
        return figures_of(Level(concurrency=4), Ran((DONE,), 1.0, 1), before, after)

    run_of_house = asyncio.run(run())
    assert run_of_house["spec_decode_acceptance_length"] == 3.0, "vLLM's name has vLLM's meaning"
    assert (run_of_house["num_rounds"], run_of_house["num_emitted"]) == (100, 102)
    assert run_of_house["acceptance_length"] == 1.02
    shown = ServingFigures("a load", "fake", (run_of_house,), (), ())
    lines = [" ".join(line.split()) for line in shown.as_text().splitlines()]
    assert any(line.endswith(" tokens/round rounds proposals cached") for line in lines)
    assert any(line.endswith(" 1.02 100 1 0 of 7") for line in lines)
    assert {"tokens/round", "proposals", "TTFT"} <= shown.explains
    assert "accepted/proposal + 1" not in shown.explains


def test_a_server_that_tells_only_its_proposals_is_shown_with_their_number() -> None:
    """vLLM does not say how many rounds had none: its figure is not that of all rounds."""
    after = {
        "vllm:spec_decode_num_drafts": 1.0,
        "vllm:spec_decode_num_draft_tokens": 2.0,
        "vllm:spec_decode_num_accepted_tokens": 2.0,
    }
    run = figures_of(Level(concurrency=4), Ran((DONE,), 1.0, 1), {}, after)
    assert "acceptance_length" not in run.keys
    shown = ServingFigures("a load", "fake", (run,), (), ())
    text = shown.as_text()
    assert "accepted/proposal + 1  proposals" in text
    assert "tokens/round" not in text
    assert {"accepted/proposal + 1", "proposals"} <= shown.explains
    assert "tokens/round" not in shown.explains


@pytest.mark.parametrize("stats", [None, [], {}, {"proposals": {"jit": 1}}, {"num_emitted": 3}])
def test_stats_of_another_kind_of_server_are_none(stats: object) -> None:
    assert rounds_of(stats) == {}


def test_a_server_that_began_anew_meanwhile_has_no_figure_of_rounds() -> None:
    before = rounds_of({"proposals": {"none": 9}, "num_emitted": 9})
    after = rounds_of({"proposals": {"none": 12}, "num_emitted": 3})
    run = figures_of(Level(concurrency=1), Ran((DONE,), 1.0, 1), before, after)
    assert "acceptance_length" not in run.keys


def test_a_page_that_is_no_json_leaves_the_other_counters() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        is_stats = request.url.path == "/stats"
        return httpx2.Response(200, text="<html>" if is_stats else SAMPLE)

    async def run() -> dict[str, float]:
        transport = httpx2.MockTransport(answer)
        async with httpx2.AsyncClient(transport=transport, base_url="http://server") as client:
            return await counters(client)

    assert asyncio.run(run()) == {"vllm:spec_decode_num_drafts": 3.0}


def test_a_run_in_which_all_failed_has_figures_too() -> None:
    failed = Outcome(0.0, 0.1, error="refused")
    run = figures_of(Level(request_rate=1.0), Ran((failed,), 1.0, 1), {}, {})
    assert (run["completed"], run["p99_itl_ms"], run["output_throughput"]) == (0, 0.0, 0.0)
    shown = ServingFigures("a load", "fake", (run,), (), ("refused",))
    assert not shown.is_identical
    assert "failed: refused" in shown.as_text()


def test_tokens_are_counted_in_the_second_they_came_in() -> None:
    late = replace(DONE, started_s=10.0, ttft_s=0.9, itls_s=(0.2, 0.2), num_tokens=6)
    assert most_in_a_second([late]) == 4.0


def test_counters_of_several_engines_add_up_and_others_are_left_out() -> None:
    text = (
        SAMPLE + 'vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 4.0\n'
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 2.0\n'
        'vllm:prompt_tokens_total{model_name="m"} 9.0\n'
    )
    assert counters_of(text) == {
        "vllm:spec_decode_num_drafts": 7.0,
        "vllm:spec_decode_num_accepted_tokens_per_pos[1]": 2.0,
    }


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_lines_end_at_line_feeds_only_wherever_a_stream_is_cut(size: int) -> None:
    data = 'data: {"a": "\u2028 \x85"}\r\n\r\ndata: ä\n'.encode()

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(data), size):
            yield data[start : start + size]

    async def read() -> list[str]:
        return [line async for line in lines_of(pieces())]

    assert asyncio.run(read()) == ['data: {"a": "\u2028 \x85"}', "", "data: ä"]


def ask_house(prompt: str) -> Outcome:
    async def run() -> Outcome:
        async with House().client() as client:
            return await ask(client, ABOUT, prompt, origin=0.0)

    return asyncio.run(run())


def test_an_answer_is_put_together_and_timed() -> None:
    outcome = ask_house("hi")
    assert (outcome.text, outcome.error, outcome.finish_reason) == (ANSWER, None, "stop")
    assert (outcome.num_prompt_tokens, outcome.num_tokens) == (2, len(ANSWER))
    assert len(outcome.itls_s) == len(ANSWER) - 1


@pytest.mark.parametrize(
    ("prompt", "words"), [("refused", "HTTP 400"), ("broken", "on purpose"), ("x" * 99, "HTTP 400")]
)
def test_a_failure_is_an_outcome_not_an_exception(prompt: str, words: str) -> None:
    assert words in (ask_house(prompt).error or "")


def test_an_answer_that_lacks_its_end_is_not_whole() -> None:
    """What a fault could do unseen: the text is right as far as it goes."""
    event = {"choices": [{"text": "a", "finish_reason": None}], "usage": None}
    end = {"choices": [{"text": "", "finish_reason": "stop"}], "usage": {"completion_tokens": 1}}
    reading = Reading()
    for line in (event, end):
        reading.take("data: " + json.dumps(line), 0.0)
    assert reading.what_is_missing is not None
    reading.take("data: [DONE]", 0.0)
    assert reading.what_is_missing is None
    reading.take(
        "data: " + json.dumps(end | {"choices": [{"text": "", "finish_reason": "abort"}]}), 0.0
    )
    assert reading.what_is_missing is not None


def test_harm_done_to_others_is_seen() -> None:
    assert faults.differences(DONE, "abcd") == []
    assert faults.differences(replace(DONE, text="abc"), "abcd") != []
    assert faults.differences(replace(DONE, error="cut off"), "abcd") != []
    refused = httpx2.Response(400, json={"error": {"message": "no"}})
    assert faults.refusal_of(refused, "it") == []
    for wrong in (
        httpx2.Response(200, json={"choices": []}),
        httpx2.Response(500, json={"error": {"message": "no"}}),
        httpx2.Response(400, text="no"),
        httpx2.Response(400, json=[]),
    ):
        assert faults.refusal_of(wrong, "it") != []


def test_a_fault_during_which_a_stream_breaks_is_not_harmless() -> None:
    async def run() -> faults.Fault:
        house = House()
        async with house.client() as client:
            others = await faults.known_answers(client, ABOUT, ["one", "two"])

            async def misbehave() -> list[str]:
                return []

            fine = await others.during(misbehave, "nothing")
            assert fine.is_harmless
            house.engines.answer = "something else"
            return await others.during(misbehave, "swapped")

    fault = asyncio.run(run())
    assert not fault.is_harmless
    assert len(fault.reasons) == fault.num_streams == 2


def test_prompts_are_the_same_for_a_seed_and_a_data_set_goes_round(tmp_path) -> None:  # type: ignore[no-untyped-def]
    assert prompts_of(None, 3, 5, 1) == prompts_of(None, 3, 5, 1) != prompts_of(None, 3, 5, 2)
    assert all(len(prompt.split()) == 5 for prompt in prompts_of(None, 3, 5, 1))
    dataset = tmp_path / "two.jsonl"
    dataset.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    assert prompts_of(dataset, 3, 5, 1) == ["a", "b", "a"]
    with pytest.raises(UsageError):
        prompts_of(tmp_path / "none.jsonl", 3, 5, 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "--base-url"),
        (["--base-url", "localhost:1"], "http"),
        (["--base-url", "http://"], "http://HOST:PORT"),
        (["--base-url", "http://[::1"], "http://HOST:PORT"),
        (["--base-url", "http://127.0.0.1:1"], "does not answer"),
        (["--base-url", "http://127.0.0.1:1", "--mode", "sd"], "--bundle"),
        (["--base-url", "http://a", "--concurrency", "0"], "--concurrency"),
        (["--base-url", "http://a", "--request-rate", "nan"], "--request-rate"),
        (["--base-url", "http://a", "--save-result", "x.json"], "--save-result"),
        (["--base-url", "http://a", "--save-detailed"], "--save-result"),
        (["--bundle", "none", "--num-prompts", "1"], "did not start"),
    ],
)
def test_what_cannot_be_measured_is_one_line_and_exit_code_2(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "serving", *options]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert words in line
