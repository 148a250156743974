"""A server whose every event comes at a time that is written down, on a clock that does not wait:
figures are what they have to be, exactly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import pytest

from runtime.bench.serving.client import Ask, Outcome, ask
from runtime.bench.serving.figures import Run, details_of, figures_of
from runtime.bench.serving.load import Level, Ran, arrivals, run_level
from tests.helpers.virtual_time import run_virtually

ABOUT = Ask("fake")
USAGE = {
    "prompt_tokens": 5, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 3}
}  # fmt: skip
Script = list[tuple[float, object]]
"""Seconds before an event, and the event."""


def said(text: str, finish_reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish_reason}], "usage": None}


USUAL: Script = [
    (0.25, said("")),  # has no text, and is no first token
    (0.25, said("one")),
    (0.125, said("two ")),
    (0.25, said("six")),
    (0.125, said("", "stop")),
    (1.0, {"choices": [], "usage": USAGE}),  # a server may be late with it
    (0.0, "[DONE]"),
]
"""First text after 0.5 s, last text after 0.875, ended at 1.0; the connection free at 2.0."""


class _Stream(httpx2.AsyncByteStream):
    def __init__(self, script: Script) -> None:
        self._script = script

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for wait_s, event in self._script:
            await asyncio.sleep(wait_s)
            data = event if isinstance(event, str) else json.dumps(event)
            yield f"data: {data}\n\n".encode()


def load(level: Level, prompts: list[str], script_of: Callable[[str], Script | int]) -> Ran:
    """A number instead of a script is a status that comes after half a second."""

    async def answer(request: httpx2.Request) -> httpx2.Response:
        script = script_of(json.loads(request.content)["prompt"])
        if isinstance(script, int):
            await asyncio.sleep(0.5)
            return httpx2.Response(script, json={"error": {"message": "no"}})
        return httpx2.Response(200, stream=_Stream(script))

    async def run() -> Ran:
        transport = httpx2.MockTransport(answer)
        async with httpx2.AsyncClient(transport=transport, base_url="http://server") as client:
            return await run_level(
                level,
                prompts,
                lambda prompt, origin: ask(client, ABOUT, prompt, origin=origin),
                seed=1,
                on_done=lambda _: None,
            )

    return run_virtually(run())


def figures(level: Level, ran: Ran) -> Run:
    return figures_of(level, ran, {}, {})


def test_times_of_one_answer_are_vllms() -> None:
    """TTFT to the first text; TPOT over tokens of the usage, not chunks; the end where the choice
    ended, not where the connection did."""
    level = Level(concurrency=1)
    ran = load(level, ["a"], lambda _: USUAL)
    [outcome] = ran.outcomes
    assert outcome == Outcome(
        started_s=0.0, latency_s=1.0, ttft_s=0.5, itls_s=(0.125, 0.25), num_prompt_tokens=5,
        num_tokens=7, num_cached=3, text="onetwo six", finish_reason="stop",
    )  # fmt: skip
    found = figures(level, ran)
    assert found["mean_ttft_ms"] == 500
    assert found["mean_tpot_ms"] == pytest.approx(1000 * 0.5 / 6)
    assert found["p50_itl_ms"] == 187.5
    assert found["p99_e2el_ms"] == 1000
    assert found["output_throughput"] == 7 / 2.0
    assert found["total_cached_tokens"] == 3


def test_a_closed_loop_asks_again_when_an_answer_has_ended() -> None:
    ran = load(Level(concurrency=2), list("abcde"), lambda _: USUAL)
    assert [each.started_s for each in ran.outcomes] == [0, 0, 2, 2, 4]
    assert (ran.duration_s, ran.most_at_once) == (6.0, 2)


def test_an_open_loop_asks_at_its_times_however_slow_the_server_is() -> None:
    slow: Script = [(100.0, said("late")), *USUAL]
    ran = load(Level(request_rate=4.0), list("abcdefgh"), lambda _: slow)
    assert [each.started_s for each in ran.outcomes] == pytest.approx(arrivals(8, 4.0, 1))
    assert [each.ttft_s for each in ran.outcomes] == pytest.approx([100.0] * 8)
    assert ran.most_at_once == 8


def test_failures_are_counted_and_their_times_are_in_no_percentile() -> None:
    scripts: dict[str, Script | int] = {
        "fine": USUAL,
        "refused": 429,
        "cut off": USUAL[:3],
        "broken": [*USUAL[:3], (0.0, {"error": {"message": "on purpose"}}), (0.0, "[DONE]")],
        "no JSON": [*USUAL[:3], (0.0, "{")],
        "no event": [*USUAL[:3], (0.0, [1])],
        "aborted": [*USUAL[:4], (0.0, said("", "abort")), *USUAL[5:]],
    }
    level = Level(concurrency=1)
    ran = load(level, list(scripts), lambda prompt: scripts[prompt])
    found = figures(level, ran)
    assert (found["completed"], found["failed"]) == (1, 6)
    assert (found["total_output_tokens"], found["mean_ttft_ms"]) == (7, 500)
    assert [bool(error) for error in details_of(ran)["errors"]] == [False] + [True] * 6
    assert ran.outcomes[1].latency_s == 0.5


@pytest.mark.parametrize("num_clients", [1, 3, 16])
def test_a_closed_loop_has_so_many_requests_under_way_and_no_more(num_clients: int) -> None:
    prompts = [str(number) for number in range(10)]
    ran = load(Level(concurrency=num_clients), prompts, lambda name: [(0.1, said(name)), *USUAL])
    assert [each.text for each in ran.outcomes] == [f"{name}onetwo six" for name in prompts]
    assert ran.most_at_once == min(num_clients, 10)
