"""A server process over fake engines whose texts never end by themselves.

``python -m tests.runtime.serve.fake_server DRAIN_TIMEOUT_S``; it says where it is as ``python -m
runtime serve`` does.
"""

from __future__ import annotations

import asyncio
import sys
from itertools import count

from runtime.cli.console import say
from runtime.serve.config import ServeConfig
from runtime.serve.http.app import create_app
from runtime.serve.process import bind, run_app, url_of
from runtime.serve.rounds import RoundLog
from runtime.serve.service import Service
from tests.runtime.serve.fake_engines import FakeDelta, FakeDeltas, FakeEngines


class Endless(FakeDeltas):
    """A character every few milliseconds until it is cancelled."""

    async def __aiter__(self):  # type: ignore[no-untyped-def]
        for _ in count():
            if self._is_cancelled.is_set():
                self._reason = "cancelled"
                return
            self._shown.append("a")
            yield FakeDelta("a", (97,), None)
            await asyncio.sleep(0.005)


class EndlessEngines(FakeEngines):
    def deltas(self, prompt, params, **options):  # type: ignore[no-untyped-def]  # noqa: ARG002
        return Endless(self, "", len(prompt), options)


def serve(drain_timeout_s: float) -> int:
    config = ServeConfig(model_name="fake", drain_timeout_s=drain_timeout_s)
    service = Service(EndlessEngines(), RoundLog(num_draft=4), config)
    app = create_app(service, log=lambda _line: None)
    with bind("127.0.0.1", 0) as bound:
        where = url_of(bound)
        return run_app(
            app, service, bound, on_ready=lambda: say(f"serving fake at {where} ()"), say=say
        )


if __name__ == "__main__":
    sys.exit(serve(float(sys.argv[1])))
