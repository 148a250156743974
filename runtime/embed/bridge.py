"""What the C functions of ``csrc`` ask of Python: each takes and fills plain C values.

The library's start code calls ``connect`` once. From then on a call from C comes in as the method
of the same name here, in the caller's thread, which holds the interpreter's lock meanwhile but
where it waits. An error becomes a status and the thread's last error; nothing is raised into C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from threading import Condition, Thread
from typing import Any

from engines.errors import UsageError
from runtime.embed.handles import Handles
from runtime.embed.inbox import State
from runtime.embed.memory import Memory
from runtime.embed.model import MODEL_TEXTS, REQUEST_TEXTS, Model, Text, close_quietly
from runtime.embed.options import read_open_options, read_request_options
from runtime.embed.statuses import INTERNAL, SmallBufferError, StateError, status_of
from runtime.request import FinishReason

PREFIX = "py_"
LEAST_TEXT = 5
"""Bytes of a buffer for pieces of text: the longest character and a NUL."""
EXIT_S = 30.0
"""How long an exit waits for engines in the middle of something."""
EXIT_STEP_S = 0.1
"""Waited at a time: a process that is stopped meanwhile (by SIGSTOP, a debugger, a machine that
sleeps) loses no more of ``EXIT_S``. An exit takes the libraries from under engines that run."""
STATES = {
    State.MORE: "SSD_MORE",
    State.END: "SSD_END",
    State.TIMED_OUT: "SSD_TIMED_OUT",
}
FINISHES = {
    FinishReason.STOP: "SSD_FINISH_STOP",
    FinishReason.LENGTH: "SSD_FINISH_LENGTH",
    FinishReason.CONTEXT: "SSD_FINISH_CONTEXT",
    FinishReason.CANCELLED: "SSD_FINISH_CANCELLED",
    FinishReason.GRAMMAR: "SSD_FINISH_GRAMMAR",
}


def connect(ffi: Any, lib: Any) -> Bridge:
    """Let the library's C functions call a bridge; ``ffi`` and ``lib`` are the library's own."""
    bridge = Bridge(ffi, lib)
    for name in dir(lib):
        if name.startswith(PREFIX):
            method = getattr(bridge, name.removeprefix(PREFIX))
            ffi.def_extern(name=name, error=getattr(lib, INTERNAL))(bridge.guarded(method))
    return bridge


class Bridge:
    """The models and texts of this process, and the calls for them."""

    def __init__(self, ffi: Any, lib: Any) -> None:
        self._ffi = ffi
        self._lib = lib
        self._memory = Memory(ffi)
        self._models: Handles[Model] = Handles("model", "closed")
        self._texts: Handles[Text] = Handles("request", "destroyed")
        self._model_texts = {getattr(lib, name): name for name in MODEL_TEXTS}
        self._request_texts = {getattr(lib, name): name for name in REQUEST_TEXTS}
        self._settled = Condition()
        self._num_underway = 0  # models that are being opened or closed
        self._is_ending = False

    def guarded(self, method: Callable[..., None]) -> Callable[..., int]:
        """``method`` for a caller in C."""

        @wraps(method)
        def call(*args: Any) -> int:
            try:
                method(*args)
            except BaseException as error:
                name, line = status_of(error)
                self._lib.keep_error(line.encode("utf-8", "backslashreplace"))
                status: int = getattr(self._lib, name)
                return status
            return int(self._lib.SSD_OK)

        return call

    def model_open(self, bundle: Any, options: Any, model: Any) -> None:
        path = self._memory.text(bundle, "bundle")
        wishes = {}
        if not self._memory.is_null(options):
            wishes = read_open_options(self._memory.text(options, "options"))
        with self._underway():
            if self._is_ending:
                raise StateError("this process is ending and opens no model any more")
            handle = self._models.add(Model.open(path, **wishes))
        model[0] = self._ffi.cast("ssd_model *", handle)

    def model_close(self, model: Any) -> None:
        with self._underway():
            self._models.pop(self._number(model)).close()

    def model_info_get(self, model: Any, info: Any) -> None:
        self._fill(info, self._model(model).info())

    def model_text(self, model: Any, kind: int, buffer: Any, size: int, needed: Any) -> None:
        opened, name = self._model(model), self._kind(self._model_texts, kind)
        self._memory.put_text(opened.text(name), buffer, size, needed)

    def eos_token_ids(self, model: Any, ids: Any, size: int, needed: Any) -> None:
        self._memory.put_token_ids(self._model(model).llm.eos_token_ids, ids, size, needed)

    def encode(self, model: Any, text: Any, ids: Any, size: int, needed: Any) -> None:
        llm = self._model(model).llm
        found = llm.encode(self._memory.text(text, "text"))
        self._memory.put_token_ids(found, ids, size, needed)

    def encode_chat(
        self, model: Any, messages: Any, num: int, ids: Any, size: int, needed: Any
    ) -> None:
        found = self._model(model).llm.encode_chat(self._messages(messages, num))
        self._memory.put_token_ids(found, ids, size, needed)

    def decode(self, model: Any, ids: Any, num: int, buffer: Any, size: int, needed: Any) -> None:
        llm = self._model(model).llm
        listed = self._memory.token_ids(ids, num, "token_ids")
        wrong = next((each for each in listed if each < 0), None)
        if wrong is not None:
            raise UsageError(f"token_ids has {wrong}, expected ids of at least 0")
        self._memory.put_text(llm.tokenizer.decode(listed), buffer, size, needed)

    def request_begin(self, model: Any, prompt: Any, options: Any, request: Any) -> None:
        opened = self._model(model)
        self._begin(opened, self._memory.text(prompt, "prompt"), options, request)

    def request_begin_tokens(
        self, model: Any, ids: Any, num: int, options: Any, request: Any
    ) -> None:
        opened = self._model(model)
        self._begin(opened, self._memory.token_ids(ids, num, "token_ids"), options, request)

    def request_begin_chat(
        self, model: Any, messages: Any, num: int, options: Any, request: Any
    ) -> None:
        opened = self._model(model)
        prompt = opened.llm.encode_chat(self._messages(messages, num))
        self._begin(opened, prompt, options, request)

    def request_read(self, request: Any, timeout_ms: int, piece: Any) -> None:
        text, null = self._text(request), self._memory.is_null
        most_bytes = None if null(piece.text) else piece.text_size - 1
        most_token_ids = None if null(piece.token_ids) else piece.token_ids_size
        if most_bytes is None and most_token_ids is None:
            raise UsageError("text and token_ids are NULL, expected a buffer; or ssd_request_wait")
        if most_bytes is not None and piece.text_size < LEAST_TEXT:
            raise SmallBufferError(
                f"text_size is {piece.text_size}, expected at least {LEAST_TEXT}: a character of "
                "4 bytes and a NUL"
            )
        if most_token_ids == 0:
            raise SmallBufferError("token_ids_size is 0, expected at least 1")
        found = text.inbox.read(_seconds(timeout_ms), most_bytes, most_token_ids)
        if most_bytes is not None:
            self._ffi.memmove(piece.text, found.text + b"\0", len(found.text) + 1)
        if found.token_ids:
            piece.token_ids[0 : len(found.token_ids)] = found.token_ids
        piece.text_length, piece.num_token_ids = len(found.text), len(found.token_ids)
        piece.state = getattr(self._lib, STATES[found.state])

    def request_wait(self, request: Any, timeout_ms: int, state: Any) -> None:
        has_ended = self._text(request).inbox.wait(_seconds(timeout_ms))
        state[0] = getattr(self._lib, STATES[State.END if has_ended else State.TIMED_OUT])

    def request_cancel(self, request: Any) -> None:
        self._text(request).cancel()

    def request_destroy(self, request: Any) -> None:
        self._texts.pop(self._number(request)).cancel()

    def request_result(self, request: Any, result: Any) -> None:
        text = self._text(request)
        self._fill(result, text.result())
        reason = FinishReason(text.completion().finish_reason)
        result.finish_reason = getattr(self._lib, FINISHES[reason])

    def request_text(self, request: Any, kind: int, buffer: Any, size: int, needed: Any) -> None:
        text, name = self._text(request), self._kind(self._request_texts, kind)
        self._memory.put_text(text.text(name), buffer, size, needed)

    def request_token_ids(self, request: Any, ids: Any, size: int, needed: Any) -> None:
        found = self._text(request).completion().token_ids
        self._memory.put_token_ids(found, ids, size, needed)

    def stop_all(self) -> None:
        """The process ends: close all models, side by side, those that are just being opened, too,
        and wait for that no longer than ``EXIT_S``."""
        steps = iter(range(round(EXIT_S / EXIT_STEP_S)))
        with self._settled:
            self._is_ending = True
            while self._num_underway > 0 and next(steps, None) is not None:
                self._settled.wait(EXIT_STEP_S)
        threads = [
            Thread(target=close_quietly, args=(model,), daemon=True) for model in self._models.all()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive() and next(steps, None) is not None:
                thread.join(EXIT_STEP_S)

    @contextmanager
    def _underway(self) -> Iterator[None]:
        with self._settled:
            self._num_underway += 1
        try:
            yield
        finally:
            with self._settled:
                self._num_underway -= 1
                self._settled.notify_all()

    def _begin(self, model: Model, prompt: str | list[int], options: Any, request: Any) -> None:
        params, wishes = read_request_options(options, self._memory, self._lib)
        text = model.begin(prompt, params, wishes)
        request[0] = self._ffi.cast("ssd_request *", self._texts.add(text))

    def _messages(self, messages: Any, num: int) -> list[dict[str, str]]:
        return [
            {
                "role": self._memory.text(each.role, "the role of a message"),
                "content": self._memory.text(each.content, "the content of a message"),
            }
            for each in self._memory.items(messages, num, "messages")
        ]

    def _model(self, pointer: Any) -> Model:
        return self._models.get(self._number(pointer))

    def _text(self, pointer: Any) -> Text:
        return self._texts.get(self._number(pointer))

    def _number(self, pointer: Any) -> int:
        return int(self._ffi.cast("uintptr_t", pointer))

    @staticmethod
    def _kind(names: dict[int, str], kind: int) -> str:
        if kind not in names:
            raise UsageError(f"kind is {kind}, expected {' or '.join(names.values())}")
        return names[kind]

    @staticmethod
    def _fill(struct: Any, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(struct, name, value)


def _seconds(timeout_ms: int) -> float | None:
    return None if timeout_ms < 0 else timeout_ms / 1000
