"""Every error as OpenAI's JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from engines.errors import SsdError
from runtime.serve.errors import ApiError, as_api_error

TRIED = ("str", "int", "list", "dict", "TextPart")
"""Types that a value may have, which pydantic names in a fault's place."""
SHORT = 80
"""Characters of a parameter's name or value that a message repeats."""


class Refused(HTTPException):
    """An ApiError from within the reading of a body, where FastAPI lets nothing else pass."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.status, str(error))
        self.error = error


def answer(error: ApiError) -> Response:
    """ASCII JSON: half a character in a message must not make an error of its own."""
    return Response(
        json.dumps(error.as_record()),
        status_code=error.status,
        headers=error.headers,
        media_type="application/json",
    )


def add_handlers(app: FastAPI) -> None:
    async def on_error(_request: Request, error: Exception) -> Response:
        return answer(as_api_error(error))

    async def on_invalid(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return answer(of_validation(error.errors()))

    async def on_http(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if isinstance(error, Refused):
            return answer(error.error)
        response = answer(_of_status(error.status_code, str(error.detail)))
        response.headers.update(error.headers or {})
        return response

    app.add_exception_handler(ApiError, on_error)
    app.add_exception_handler(SsdError, on_error)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(HTTPException, on_http)


def of_validation(errors: Sequence[Any]) -> ApiError:
    """The first thing that is wrong with a body. Where a value may be one of several types, what
    came nearest: the one whose fault lies deepest, and is not its type."""
    kinds = {each["type"]: each for each in reversed(errors)}
    if "extra_forbidden" in kinds:
        where = _path(kinds["extra_forbidden"]["loc"])
        message = f"Unrecognized request argument supplied: {where}"
        return ApiError(400, message, code="unknown_parameter", param=where)
    first = max(errors, key=lambda each: (len(each["loc"]), not each["type"].endswith("_type")))
    where = _path(first["loc"])
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", "")
        return ApiError(400, f"the body is not JSON: {reason}", code="invalid_json")
    if first["type"] == "value_error":
        return ApiError(400, str(first["ctx"]["error"]), code="invalid_value", param=where or None)
    if not where:
        return ApiError(
            400,
            "expected a JSON object as the body, with Content-Type: application/json",
            code="invalid_json",
        )
    if first["type"] == "missing":
        return ApiError(400, f"{where} is missing", code="missing_parameter", param=where)
    if _is_off_only(first):
        message = f"{where} is not served here ({first['msg']}); leave it away"
        return ApiError(400, message, code="unsupported_parameter", param=where)
    found = repr(first.get("input"))
    found = found if len(found) <= SHORT else found[:SHORT] + "..."
    return ApiError(400, f"{where} is {found}: {first['msg']}", code="invalid_value", param=where)


def _is_off_only(error: Any) -> bool:
    """Whether the parameter can only be null, or say "off"."""
    expected = str(error.get("ctx", {}).get("expected", ""))
    is_list = error["type"] == "too_long" and error["ctx"]["max_length"] == 0
    return error["type"] == "none_required" or expected in ("False", "True", "1") or is_list


def _path(place: Sequence[Any]) -> str:
    """``messages.0.content`` of a place in the body; the names of types that were tried go."""
    parts = [str(part) for part in place if part not in ("body", "query")]
    kept = [part for part in parts if "[" not in part and part not in TRIED]
    path = ".".join(kept)
    return path if len(path) <= SHORT else path[:SHORT] + "..."


def _of_status(status: int, detail: str) -> ApiError:
    words = {
        400: "the body cannot be read: expected JSON in UTF-8",
        404: "there is nothing at this address; see /openapi.json",
        405: "this address does not take that method; see /openapi.json",
        413: "the body is too long",
    }
    code = {
        400: "invalid_json",
        404: "not_found",
        405: "method_not_allowed",
        413: "body_too_long",
    }.get(status)
    return ApiError(status, words.get(status, detail), code=code)
