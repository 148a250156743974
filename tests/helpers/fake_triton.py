"""Triton's side of a Python model: the server's module, and a server that loads a repository.

What it holds a model to is documented in the Python backend's README, or was seen in a real server:

- a request's tensors live as long as the call of ``execute``; their memory is used again after it
- ``execute`` of a decoupled model returns None, and a sender works from any thread after it
- a sender takes one final flag, and nothing behind it; ``is_cancelled`` is not asked after it
- responses hold outputs that the configuration names, in its types and shapes; those that nobody
  asked for are dropped
- inputs are of the configuration's names, types and shapes, or the server refuses the request
- the classes of the module are there from ``initialize`` on, not yet when model.py is imported
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Condition, get_ident
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.helpers.triton_config import read_config

FINAL = 1
PATIENCE_S = 30.0
NUMPY = {
    "TYPE_BOOL": np.bool_,
    "TYPE_UINT32": np.uint32,
    "TYPE_UINT64": np.uint64,
    "TYPE_INT32": np.int32,
    "TYPE_FP32": np.float32,
    "TYPE_STRING": np.object_,
}


class TritonModelError(Exception):
    """``TritonModelException`` of the module."""


class FakeError:
    """``TritonError``."""

    INTERNAL, INVALID_ARG, UNAVAILABLE = "INTERNAL", "INVALID_ARG", "UNAVAILABLE"
    UNSUPPORTED, CANCELLED = "UNSUPPORTED", "CANCELLED"

    def __init__(self, message: str, code: str = "INTERNAL") -> None:
        assert isinstance(message, str)
        self._message, self._code = message, code

    def message(self) -> str:
        return self._message

    def code(self) -> str:
        return self._code


class FakeTensor:
    """A tensor; strings are bytes when they are read, whatever they were made of."""

    def __init__(self, name: str, array: npt.NDArray[Any]) -> None:
        assert name
        assert isinstance(array, np.ndarray)
        assert array.dtype.type in NUMPY.values(), array.dtype
        assert array.size or array.dtype != np.object_, "a real one cannot serialise no strings"
        self._name, self._array = name, np.ascontiguousarray(array)
        if array.dtype == np.object_:
            encoded = [
                each if isinstance(each, bytes) else str(each).encode() for each in array.flat
            ]
            self._array = np.array(encoded, np.object_).reshape(array.shape)

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> npt.NDArray[Any]:
        return self._array

    def overwrite(self) -> None:
        """Its memory is another request's now."""
        self._array[...] = b"overwritten" if self._array.dtype == np.object_ else 1


class FakeResponse:
    """``InferenceResponse``."""

    def __init__(
        self, output_tensors: Sequence[FakeTensor] = (), error: FakeError | None = None
    ) -> None:
        self.tensors, self.error = list(output_tensors), error


class Call:
    """A client's request, its sender, and what came of it."""

    def __init__(self, outputs: Mapping[str, Any], wanted: Sequence[str] | None) -> None:
        self.responses: list[dict[str, Any]] = []
        self.error: FakeError | None = None
        self.threads: set[int] = set()
        self._outputs, self._wanted = outputs, wanted
        self._changed = Condition()
        self._is_final = self._is_cancelled = self._is_told = self._is_broken = False

    # The sender.

    def send(self, response: FakeResponse | None = None, flags: int = 0) -> None:
        with self._changed:
            assert not self._is_final, "Unable to send response. Response sender has been closed."
            if self._is_broken:  # a real one is closed by the flag all the same
                self._is_final = flags == FINAL
                self._changed.notify_all()
                raise RuntimeError("An error occurred while sending a response.")
            assert flags in (0, FINAL)
            assert response is not None or flags == FINAL, "neither a response nor a flag"
            self.threads.add(get_ident())
            if response is not None and response.error is not None:
                self.error = response.error
            elif response is not None:
                self.responses.append(self._values(response))
            self._is_final = flags == FINAL
            self._changed.notify_all()

    def is_cancelled(self) -> bool:
        with self._changed:
            assert not self._is_final, "the request is gone"
            if self._is_broken:
                raise RuntimeError("An error occurred while asking for a cancellation.")
            self.threads.add(get_ident())
            self._is_told = self._is_cancelled
            self._changed.notify_all()
            return self._is_cancelled

    # The client.

    def cancel(self) -> None:
        with self._changed:
            self._is_cancelled = True

    def wait_until_told(self) -> None:
        """Until the model has heard that the request was cancelled."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._is_told, PATIENCE_S)

    def break_down(self) -> None:
        """No response can be sent any more, and nothing asked."""
        with self._changed:
            self._is_broken = True

    def wait(self) -> Call:
        """Until the final flag."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._is_final, PATIENCE_S), "no final response"
        return self

    def wait_for_pieces(self, number: int) -> None:
        with self._changed:
            assert self._changed.wait_for(
                lambda: len(self.responses) >= number or self._is_final, PATIENCE_S
            )

    @property
    def is_final(self) -> bool:
        return self._is_final

    @property
    def last(self) -> dict[str, Any]:
        self.wait()
        assert self.error is None, f"{self.error.code()}: {self.error.message()}"  # type: ignore[union-attr]
        return self.responses[-1]

    @property
    def refusal(self) -> tuple[str, str]:
        """Code and message."""
        self.wait()
        assert self.error is not None, self.responses
        return self.error.code(), self.error.message()

    @property
    def text(self) -> str:
        assert self.last
        return "".join(each["text_output"] for each in self.responses)

    @property
    def token_ids(self) -> tuple[int, ...]:
        assert self.last
        return tuple(token for each in self.responses for token in each.get("output_ids", ()))

    def _values(self, response: FakeResponse) -> dict[str, Any]:
        values = {}
        for tensor in response.tensors:
            config, array = self._outputs[tensor.name()], tensor.as_numpy()
            assert array.dtype.type is NUMPY[config["data_type"]], tensor.name()
            check_shape(tensor.name(), array.shape, config)
            assert tensor.name() not in values
            if self._wanted is None or tensor.name() in self._wanted:
                values[tensor.name()] = _plain(array, is_list=config["dims"] == ["-1"])
        return values


class FakeRequest:
    """``InferenceRequest``: of no use behind ``execute``."""

    def __init__(self, call: Call, tensors: list[FakeTensor], parameters: dict[str, Any]) -> None:
        self._call, self._tensors, self._parameters = call, tensors, parameters
        self.is_over = False

    def inputs(self) -> list[FakeTensor]:
        assert not self.is_over
        return self._tensors

    def parameters(self) -> str:
        assert not self.is_over
        return json.dumps(self._parameters)

    def get_response_sender(self) -> Call:
        assert not self.is_over
        return self._call

    def release(self) -> None:
        self.is_over = True
        for tensor in self._tensors:
            tensor.overwrite()


class FakeLogger:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def _log(self, message: str) -> None:
        assert isinstance(message, str)
        assert "\n" not in message
        self.lines.append(message)

    log_info = log_warn = log_error = _log


class FakeModel:
    """A model of a repository, loaded as the server loads it."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        """``changes`` are made to the configuration that is read from config.pbtxt."""
        self.config: dict[str, Any] = {**read_config(folder / "config.pbtxt"), **changes}
        self.logger = FakeLogger()
        self._inputs = {each["name"]: each for each in self.config["input"]}
        self._outputs = {each["name"]: each for each in self.config["output"]}
        kind = self.config["instance_group"][0]["kind"].removeprefix("KIND_")
        with _module() as module:
            spec = importlib.util.spec_from_file_location("model", folder / "1" / "model.py")
            assert spec is not None
            assert spec.loader is not None
            model = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(model)
            self._fill(module)
            self._model = model.TritonPythonModel()
            self._model.initialize(
                {
                    "model_config": json.dumps(self.config),
                    "model_instance_kind": kind,
                    "model_instance_device_id": "0",
                    "model_repository": str(folder),
                    "model_version": "1",
                    "model_name": self.config["name"],
                }
            )

    def _fill(self, module: Any) -> None:
        module.Tensor = FakeTensor
        module.InferenceResponse = FakeResponse
        module.TritonError = FakeError
        module.TritonModelException = TritonModelError
        module.Logger = self.logger
        module.TRITONSERVER_RESPONSE_COMPLETE_FINAL = FINAL

    def ask(
        self, *, wanted: Sequence[str] | None = None, parameters: Any = None, **inputs: Any
    ) -> Call:
        """One request, as HTTP's ``generate`` makes it of JSON; ``wanted`` outputs, None: all."""
        return self.ask_all([(inputs, parameters or {})], wanted=wanted)[0]

    def ask_all(
        self,
        requests: Sequence[tuple[dict[str, Any], dict[str, Any]]],
        *,
        wanted: Sequence[str] | None = None,
    ) -> list[Call]:
        """Inputs and parameters of several, in one call of ``execute``."""
        made = []
        for inputs, parameters in requests:
            tensors = [self._tensor(name, value) for name, value in inputs.items()]
            made.append(FakeRequest(Call(self._outputs, wanted), tensors, parameters))
        try:
            assert self._model.execute(made) is None
        finally:
            calls = [each.get_response_sender() for each in made]
            for each in made:
                each.release()
        return calls

    def unload(self) -> None:
        self._model.finalize()

    def _tensor(self, name: str, value: Any) -> FakeTensor:
        config = self._inputs[name]
        kind = NUMPY[config["data_type"]]
        items = value if isinstance(value, list) else [value]
        array = value if isinstance(value, np.ndarray) else np.array(items, kind)
        assert array.dtype.type is kind
        check_shape(name, array.shape, config)
        return FakeTensor(name, array)


def check_shape(name: str, shape: tuple[int, ...], config: Mapping[str, Any]) -> None:
    dims = [int(each) for each in config["dims"]]
    fits = len(dims) == len(shape) and all(
        wide == -1 or wide == long for wide, long in zip(dims, shape, strict=True)
    )
    assert fits, f"{name} has shape {shape}, the configuration says {dims}"


@contextmanager
def _module() -> Iterator[ModuleType]:
    """``triton_python_backend_utils``, empty, while model.py is imported and initialised."""
    name = "triton_python_backend_utils"
    module = ModuleType(name)
    assert name not in sys.modules
    sys.modules[name] = module
    try:
        yield module
    finally:
        del sys.modules[name]


def _plain(array: npt.NDArray[Any], *, is_list: bool) -> Any:
    items = [each.decode() if isinstance(each, bytes) else each.item() for each in array.flat]
    return items if is_list else items[0]
