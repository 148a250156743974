"""A bundle as a model of Triton's Python backend: what 1/model.py hands its three calls to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Any

from engines.errors import SsdError, UsageError, as_line
from runtime.completion import Delta
from runtime.embed.triton.api import Backend, InferenceRequest
from runtime.embed.triton.asked import Asked, read_request
from runtime.embed.triton.config import Parameters, read_parameters
from runtime.embed.triton.replies import Outbox, Reply, UnavailableError

if TYPE_CHECKING:
    from runtime.llm import LLM

UNLOADED = "the model is being unloaded"
NUM_INTAKES = 2
"""Threads that tokenise prompts and compile grammars; one long grammar holds up nobody."""


class ServedModel:
    """A loaded bundle and the requests that run on it.

    ``execute`` waits for nothing: a request is copied out of the server's memory, prepared by a
    thread of the intake, decoded by the engine loop beside the others, and answered by the outbox.
    """

    def __init__(self, backend: Backend, arguments: Mapping[str, str], folder: Path) -> None:
        """``arguments`` are what ``initialize`` gets, ``folder`` is the version's folder.

        Raises the server's TritonModelException, with one line, for what cannot be served.
        """
        self._backend = backend
        try:
            parameters = _parameters(arguments)
            self._open(parameters, folder)
        except (SsdError, OSError) as error:
            raise backend.TritonModelException(as_line(str(error))) from None

    def _open(self, parameters: Parameters, folder: Path) -> None:
        # Late, so that a wrong config.pbtxt is told of at once.
        from runtime.engine_loop import EngineLoop
        from runtime.llm import LLM

        log = self._backend.Logger
        options: Any = parameters.of_llm
        with ExitStack() as opened:
            self._llm: LLM = opened.enter_context(
                LLM.open(folder / parameters.bundle, announce=log.log_info, **options)
            )
            self._loop = EngineLoop(self._llm)
            opened.callback(self._loop.close, drain_s=parameters.drain_timeout_s)
            self._num_places = self._llm.settings.max_batch + parameters.max_waiting
            self._places = BoundedSemaphore(self._num_places)
            self._outbox = Outbox(self._backend, cancel=self._cancel, on_closed=self._leave)
            opened.pop_all()
        self._drain_s = parameters.drain_timeout_s
        self._is_closing = False
        self._intake = ThreadPoolExecutor(NUM_INTAKES, "triton intake")
        note = f": {self._llm.note}" if self._llm.note else ""
        log.log_info(as_line(f"ssd-trt: {parameters.bundle} is open (mode {self._llm.mode}){note}"))

    def execute(self, requests: Sequence[InferenceRequest]) -> None:
        """Take requests in. Each is answered later, by itself; nothing is returned for it."""
        for request in requests:
            reply = Reply(request.get_response_sender())
            self._outbox.open(reply)
            try:
                asked = read_request(request)
                self._enter(reply)
                reply.streams = asked.streams
                self._intake.submit(self._begin, reply, asked)
            except Exception as error:
                self._outbox.put(reply, error)

    def close(self) -> None:
        """Take no more requests, let those that there are go on for ``drain_timeout_s``, answer
        the rest with an error, and free everything."""
        self._is_closing = True
        with ExitStack() as last:
            last.callback(self._llm.close)
            last.callback(self._outbox.close)
            last.callback(self._loop.close, drain_s=self._drain_s)
            last.callback(self._intake.shutdown)

    def _enter(self, reply: Reply) -> None:
        if self._is_closing:
            raise UnavailableError(UNLOADED)
        reply.has_place = self._places.acquire(blocking=False)
        if not reply.has_place:
            raise UnavailableError(
                f"{self._num_places} requests are here already; try again later, or raise the "
                "parameter max_waiting of config.pbtxt"
            )

    def _leave(self, reply: Reply) -> None:
        if reply.has_place:
            self._places.release()

    def _begin(self, reply: Reply, asked: Asked) -> None:
        """In a thread of the intake."""
        put = partial(self._outbox.put, reply)
        on_delta = put if asked.streams else _ignore
        try:
            prompt = asked.encode(self._llm)
            reply.job = self._loop.submit(
                prompt, asked.params, asked.options, on_delta=on_delta, on_end=put
            )
        except Exception as error:
            self._outbox.put(reply, UnavailableError(UNLOADED) if self._is_closing else error)
            return
        if reply.is_unwanted:  # cancelled before there was anything to cancel
            self._cancel(reply)

    def _cancel(self, reply: Reply) -> None:
        if reply.job is not None:
            self._loop.cancel(reply.job)


def _ignore(_delta: Delta) -> None:
    """All of it comes with the end."""


def _parameters(arguments: Mapping[str, str]) -> Parameters:
    config = json.loads(arguments["model_config"])
    if not config.get("model_transaction_policy", {}).get("decoupled", False):
        raise UsageError(
            "config.pbtxt has no model_transaction_policy { decoupled: true }, and answers stream; "
            "write it again: python -m runtime embed --triton DIR"
        )
    kind = arguments.get("model_instance_kind", "")
    if kind.removeprefix("KIND_") == "GPU":
        raise UsageError(
            "config.pbtxt has an instance group of KIND_GPU, an instance for each GPU; say "
            "KIND_MODEL, and name the devices by the parameter device (cuda:0,cuda:1)"
        )
    return read_parameters(config.get("parameters", {}))
