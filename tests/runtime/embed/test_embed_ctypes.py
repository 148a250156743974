"""The library inside of a Python that runs already, loaded by ctypes: the same as ``AsyncLLM``."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import re
import weakref
from collections.abc import Iterator
from ctypes import POINTER, byref, c_char_p, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import pytest

from engines.errors import BackendError
from runtime.async_llm import AsyncLLM
from runtime.completion import Completion
from runtime.grammar import Grammar
from runtime.llm import LLM
from runtime.sampling.params import SamplingParams
from runtime.scheduler import Scheduler
from tests.helpers.tiny_bundle import tiny_bundle

PROMPT = "the cat sat"
MESSAGES = [("system", "be brief"), ("user", "the cat")]
RESULT_SIZE = 2 * 4 + 11 * 8 + 5 * 8
SCHEMA = '{"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}'


class Bias(ctypes.Structure):
    _fields_ = (("token_id", c_int32), ("bias", ctypes.c_double))


class Message(ctypes.Structure):
    _fields_ = (("role", c_char_p), ("content", c_char_p))


class Options(ctypes.Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("temperature", ctypes.c_double),
        ("top_p", ctypes.c_double),
        ("min_p", ctypes.c_double),
        ("repetition_penalty", ctypes.c_double),
        ("presence_penalty", ctypes.c_double),
        ("frequency_penalty", ctypes.c_double),
        ("seed", ctypes.c_uint64),
        *((name, c_int32) for name in ("top_k", "max_tokens", "min_tokens", "logprobs")),
        *((name, c_int32) for name in ("ignore_eos", "grammar_kind")),
        ("grammar", c_char_p),
        ("stop", POINTER(c_char_p)),
        ("num_stop", c_size_t),
        ("stop_token_ids", POINTER(c_int32)),
        ("num_stop_token_ids", c_size_t),
        ("bad_words", POINTER(c_char_p)),
        ("num_bad_words", c_size_t),
        ("logit_bias", POINTER(Bias)),
        ("num_logit_bias", c_size_t),
        ("cache_salt", c_char_p),
    )


class Piece(ctypes.Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("text", c_void_p),
        ("text_size", c_size_t),
        ("text_length", c_size_t),
        ("token_ids", POINTER(c_int32)),
        ("token_ids_size", c_size_t),
        ("num_token_ids", c_size_t),
        ("state", c_int32),
    )


class Library:
    """ssd.h by ctypes: a call that is not SSD_OK raises."""

    def __init__(self, path: Path) -> None:
        self._inner = ctypes.CDLL(str(path))
        self._inner.ssd_last_error.restype = c_char_p

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._inner, name)

        def call(*arguments: Any) -> None:
            status = function(*arguments)
            if status != 0:
                raise RuntimeError(f"{name}: {status} ({self._inner.ssd_last_error().decode()})")

        return call

    def options(self, **values: Any) -> Options:
        options = Options()
        self.ssd_options_init(byref(options), c_size_t(ctypes.sizeof(options)))
        for name, value in values.items():
            if isinstance(value, list):
                kind = {str: c_char_p, int: c_int32, tuple: Bias}[type(value[0])]
                items = [each.encode() if isinstance(each, str) else each for each in value]
                setattr(options, name, (kind * len(items))(*items))
                setattr(options, f"num_{name}", len(items))
            else:
                setattr(options, name, value.encode() if isinstance(value, str) else value)
        return options

    def record(self, request: c_void_p) -> dict[str, Any]:
        """SSD_REQUEST_JSON of a request, which is waited for and destroyed."""
        state, needed = c_int32(), c_size_t()
        self.ssd_request_wait(request, c_int64(-1), byref(state))
        self.ssd_request_text(request, 4, None, c_size_t(0), byref(needed))
        buffer = ctypes.create_string_buffer(needed.value)
        self.ssd_request_text(request, 4, buffer, needed, None)
        self.ssd_request_destroy(request)
        record: dict[str, Any] = json.loads(buffer.value)
        return record


@pytest.fixture(scope="module")
def lib(library: Path) -> Library:
    return Library(library / "lib" / "libssd_trt.so")


@pytest.fixture(scope="module")
def model(lib: Library, bundle: Path) -> Iterator[c_void_p]:
    handle = c_void_p()
    lib.ssd_model_open(str(bundle).encode(), b'{"mode": "sd"}', byref(handle))
    yield handle
    lib.ssd_model_close(handle)


# Values as C has them; as AsyncLLM has them; options of AsyncLLM.
CASES: list[tuple[dict[str, Any], SamplingParams, dict[str, Any]]] = [
    ({}, SamplingParams(), {}),
    (
        {"temperature": 1.1, "top_p": 0.9, "min_p": 0.01, "top_k": 50, "seed": 2**63 + 5},
        SamplingParams(1.1, top_p=0.9, min_p=0.01, top_k=50, seed=2**63 + 5),
        {},
    ),
    (
        {"temperature": 0.9, "repetition_penalty": 1.3, "presence_penalty": 0.2},
        SamplingParams(0.9, repetition_penalty=1.3, presence_penalty=0.2),
        {},
    ),
    ({"frequency_penalty": 0.7}, SamplingParams(frequency_penalty=0.7), {}),
    (
        {"logit_bias": [(65, 1e30), (66, -1e30)], "max_tokens": 3},
        SamplingParams(logit_bias={65: 1e30, 66: -1e30}),
        {"max_tokens": 3},
    ),
    (
        {"temperature": 1.3, "seed": 13, "stop": ["t", "zz"], "ignore_eos": 1, "min_tokens": 2},
        SamplingParams(1.3, seed=13),
        {"stop": ["t", "zz"], "ignore_eos": True, "min_tokens": 2},
    ),
    (
        {"stop_token_ids": [133, 7], "logprobs": 3, "bad_words": ["cat"], "cache_salt": "me"},
        SamplingParams(),
        {"stop_token_ids": [133, 7], "logprobs": 3, "bad_words": ["cat"], "cache_salt": "me"},
    ),
    (
        {"temperature": 1.0, "grammar_kind": 1, "grammar": SCHEMA},
        SamplingParams(1.0),
        {"grammar": Grammar.json_schema(SCHEMA)},
    ),
    (
        {"grammar_kind": 2, "grammar": "[ab]{5}"},
        SamplingParams(),
        {"grammar": Grammar.regex("[ab]{5}")},
    ),
    (
        {"grammar_kind": 3, "grammar": 'start: "a" "b"+ "c"'},
        SamplingParams(),
        {"grammar": Grammar.lark('start: "a" "b"+ "c"')},
    ),
    (
        {"grammar_kind": 4, "grammar": '["yes", "no"]'},
        SamplingParams(),
        {"grammar": Grammar.choice(["yes", "no"])},
    ),
]


def test_every_option_gives_what_async_llm_gives(lib: Library, model: c_void_p) -> None:
    """All requests of each side run side by side, as they come."""
    requests = []
    for values, _, _ in CASES:
        request = c_void_p()
        options = lib.options(**values)
        lib.ssd_request_begin(model, PROMPT.encode(), byref(options), byref(request))
        requests.append(request)
    told = [lib.record(request) for request in requests]
    for (values, _, _), record, expected in zip(CASES, told, asyncio.run(_answers()), strict=True):
        assert record["token_ids"] == [*expected.token_ids], values
        assert record["text"] == expected.text, values
        assert record["finish_reason"] == expected.finish_reason, values
        assert record["stop_reason"] == expected.stop_reason, values
        assert (record["logprobs"] is None) == (expected.logprobs is None)
    assert len({tuple(record["token_ids"]) for record in told}) > 7, "the options did nothing"


async def _answers() -> list[Completion]:
    async with AsyncLLM.open(tiny_bundle().path, mode="ar") as llm:
        return await asyncio.gather(
            *(llm.generate(PROMPT, params, **options) for _, params, options in CASES)
        )


def test_a_conversation_and_token_ids_are_prompts_too(lib: Library, model: c_void_p) -> None:
    messages = (Message * 2)(*((role.encode(), text.encode()) for role, text in MESSAGES))
    needed, ids, request = c_size_t(), (c_int32 * 160)(), c_void_p()
    lib.ssd_encode_chat(model, messages, c_size_t(2), ids, c_size_t(160), byref(needed))
    lib.ssd_request_begin_chat(model, messages, c_size_t(2), None, byref(request))
    of_messages = lib.record(request)
    lib.ssd_request_begin_tokens(model, ids, needed, None, byref(request))
    of_ids = lib.record(request)

    async def answer() -> tuple[Completion, list[int]]:
        turns = [{"role": role, "content": text} for role, text in MESSAGES]
        async with AsyncLLM.open(tiny_bundle().path, mode="ar") as llm:
            return await llm.chat(turns), llm.llm.encode_chat(turns)

    expected, prompt = asyncio.run(answer())
    assert ids[: needed.value] == prompt
    assert of_messages["token_ids"] == of_ids["token_ids"] == [*expected.token_ids]


def test_engines_that_fail_are_told_to_whoever_asks_and_the_next_text_comes(
    lib: Library, model: c_void_p, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_scheduler: Scheduler) -> bool:
        raise BackendError("it broke")

    request, state, result = c_void_p(), c_int32(), ctypes.create_string_buffer(1024)
    text = ctypes.create_string_buffer(64)
    piece = Piece(ctypes.sizeof(Piece), ctypes.addressof(text), 64)
    with monkeypatch.context() as patch:
        patch.setattr(Scheduler, "step", broken)
        lib.ssd_request_begin(model, b"a", None, byref(request))
        with pytest.raises(RuntimeError, match=r"13 \(it broke\)"):
            lib.ssd_request_wait(request, c_int64(-1), byref(state))
    size = c_size_t(RESULT_SIZE)
    for call in (
        lambda: lib.ssd_request_read(request, c_int64(-1), byref(piece)),
        lambda: lib.ssd_request_result(request, result, size),
        lambda: lib.ssd_request_text(request, 0, None, c_size_t(0), byref(c_size_t())),
    ):
        with pytest.raises(RuntimeError, match=r"13 \(it broke\)"):
            call()
    lib.ssd_request_destroy(request)
    lib.ssd_request_begin(model, b"a", None, byref(request))
    assert lib.record(request)["finish_reason"] in ("stop", "length")


def test_no_function_follows_a_null_pointer(lib: Library, library: Path) -> None:
    """Every argument NULL or 0, of every function of the header that returns a status."""
    header = (library / "include" / "ssd.h").read_text()
    names = re.findall(r"^SSD_API ssd_status (\w+)", header, re.MULTILINE)
    may_be_null = {"ssd_model_close", "ssd_request_destroy"}
    assert len(names) > 15
    assert may_be_null < {*names}
    for name in names:
        if name in may_be_null:
            getattr(lib, name)(None)
            continue
        with pytest.raises(RuntimeError, match=r": [13] \(.*(NULL|0 bytes)"):
            getattr(lib, name)(*[c_void_p()] * 8)


def test_an_error_of_any_length_ends_with_a_whole_character(lib: Library) -> None:
    for extra in range(4):
        path = "x" * extra + "\N{EURO SIGN}" * 3000
        with pytest.raises(RuntimeError, match=r"\N{EURO SIGN}{1000}"):  # decoded strictly
            lib.ssd_model_open(path.encode(), None, byref(c_void_p()))


def test_a_closed_model_is_out_of_memory_with_requests_left_to_read(
    lib: Library, bundle: Path
) -> None:
    """Engines in cycles stayed until Python collected them: 250 MB a model, in a real pair."""
    model, request = c_void_p(), c_void_p()
    before = {id(each) for each in gc.get_objects() if type(each) is LLM}
    lib.ssd_model_open(str(bundle).encode(), b'{"mode": "ssd"}', byref(model))
    lib.ssd_request_begin(model, PROMPT.encode(), None, byref(request))
    lib.ssd_request_wait(request, -1, byref(c_int32()))
    [opened] = [
        weakref.ref(each)
        for each in gc.get_objects()
        if type(each) is LLM and id(each) not in before
    ]
    scheduler = weakref.ref(opened().engine._pair.scheduler)  # type: ignore[union-attr]
    gc.disable()  # what is freed is freed by the call
    try:
        lib.ssd_model_close(model)
        assert (opened(), scheduler()) == (None, None)
    finally:
        gc.enable()
    needed = c_size_t()
    lib.ssd_request_text(request, 4, None, 0, byref(needed))
    assert needed.value > 100
    lib.ssd_request_cancel(request)
    lib.ssd_request_destroy(request)
