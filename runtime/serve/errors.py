"""What a client is told when something is wrong: OpenAI's JSON shape, on an HTTP status."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from engines.errors import (
    CapacityError,
    MissingDependencyError,
    SsdError,
    UsageError,
    as_line,
)

INVALID = "invalid_request_error"
CONTEXT = "context_length_exceeded"


class ApiError(Exception):
    """An answer that is an error.

    status         of HTTP
    kind, code     OpenAI's ``type`` and ``code``: what programs compare
    param          the parameter that is to blame, where one is
    retry_after_s  when it may be worth another try
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}

    def as_record(self) -> dict[str, object]:
        """The JSON body."""
        return {
            "error": {
                "message": as_line(str(self)),
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }


def as_api_error(error: Exception, param: str | None = None) -> ApiError:
    """What a client is told of an error that was raised for its request, for this parameter of it
    (None: the one that the message begins with).

    The words of an SsdError are meant for users; of any other only that it happened.
    """
    match error:
        case ApiError():
            return error
        case UsageError():
            param = param or _parameter(str(error))
            return ApiError(400, str(error), code="invalid_value", param=param)
        case CapacityError():
            return ApiError(400, str(error), code=CONTEXT, param=param)
        case MissingDependencyError():  # it is there or not: no other try helps
            return ApiError(400, str(error), code="unsupported_parameter", param=param)
        case SsdError():
            return ApiError(500, str(error), kind="server_error", code="engine_error")
    return ApiError(
        500, "the server failed on this request", kind="server_error", code="internal_error"
    )


@contextmanager
def blamed(param: str | None) -> Iterator[None]:
    """What is refused in here is refused for this parameter of the request."""
    try:
        yield
    except (UsageError, CapacityError, MissingDependencyError) as error:
        raise as_api_error(error, param) from error


def _parameter(message: str) -> str | None:
    """The parameter that a message begins with ("min-tokens is 9, ..."), if it does."""
    found = re.match(r"(?:the )?([a-z]+(?:[-_][a-z]+)*) (?:is|has|cannot|may) ", message)
    return found[1].replace("-", "_") if found else None


def model_not_found(asked: str, served: str) -> ApiError:
    return ApiError(
        404,
        f"there is no model {asked!r} here; this server has {served!r}",
        code="model_not_found",
        param="model",
    )


def draining() -> ApiError:
    return ApiError(
        503,
        "this server is shutting down and takes no new requests; ask another one",
        kind="server_error",
        code="draining",
        retry_after_s=5,
    )
