"""The part of the server's module ``triton_python_backend_utils`` that a model here uses.

It exists only inside of the server's own process for Python models, so it is handed in. Names and
meanings: the Python backend's README, "Usage" and "Decoupled mode".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy.typing as npt


class Tensor(Protocol):
    """A named array. Of a request's, nothing may be kept behind ``execute`` but copies."""

    def name(self) -> str: ...

    def as_numpy(self) -> npt.NDArray[Any]: ...


class ResponseSender(Protocol):
    """A request's way back, from any thread, until the final flag was sent.

    ``send`` waits for the server. A closed one raises.
    """

    def send(self, response: object | None = None, flags: int = 0) -> None: ...

    def is_cancelled(self) -> bool: ...


class InferenceRequest(Protocol):
    """Valid within ``execute`` only."""

    def inputs(self) -> Sequence[Tensor]: ...

    def parameters(self) -> str:
        """A JSON object."""

    def get_response_sender(self) -> ResponseSender: ...


class ErrorMaker(Protocol):
    """``TritonError``, and the codes that are used."""

    INTERNAL: Any
    INVALID_ARG: Any
    UNAVAILABLE: Any
    UNSUPPORTED: Any
    CANCELLED: Any

    def __call__(self, message: str, code: Any, /) -> object: ...


class ResponseMaker(Protocol):
    def __call__(
        self, output_tensors: Sequence[Tensor] = (), error: object | None = None
    ) -> object: ...


class TensorMaker(Protocol):
    def __call__(self, name: str, array: npt.NDArray[Any], /) -> Tensor: ...


class Logger(Protocol):
    def log_info(self, message: str) -> None: ...

    def log_warn(self, message: str) -> None: ...

    def log_error(self, message: str) -> None: ...


class ExceptionMaker(Protocol):
    def __call__(self, message: str, /) -> Exception: ...


class Backend(Protocol):
    """The module itself."""

    TRITONSERVER_RESPONSE_COMPLETE_FINAL: int

    @property
    def TritonError(self) -> ErrorMaker: ...  # noqa: N802 - the server's names

    @property
    def TritonModelException(self) -> ExceptionMaker: ...  # noqa: N802

    @property
    def InferenceResponse(self) -> ResponseMaker: ...  # noqa: N802

    @property
    def Tensor(self) -> TensorMaker: ...  # noqa: N802

    @property
    def Logger(self) -> Logger: ...  # noqa: N802
