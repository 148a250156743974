"""The OpenAPI document tells the truth: what schemathesis makes of it is answered as it says."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from tests.runtime.serve.house import House

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]
OPERATIONS = [
    "POST /v1/completions",
    "POST /v1/chat/completions",
    "GET /v1/models",
    "GET /v1/models/{name}",
    "GET /health",
    "GET /metrics",
    "GET /stats",
    "GET /version",
]
FEW = settings(deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def operations() -> dict[str, Any]:
    """By method and path."""
    schema = schemathesis.openapi.from_asgi("/openapi.json", House().app)
    return {each.label: each for each in (found.ok() for found in schema.get_all_operations())}


def test_every_route_is_in_the_document(operations: dict[str, Any]) -> None:
    assert sorted(operations) == sorted(OPERATIONS)


@pytest.mark.parametrize("label", OPERATIONS)
def test_the_operation_keeps_to_its_document(label: str, operations: dict[str, Any]) -> None:
    operation = operations[label]
    right = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    cases, num = right, 3  # nothing, or one word, is asked
    if label.startswith("POST"):
        num = 12
        cases |= operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)

    @settings(FEW, max_examples=num)
    @given(case=cases)
    def keeps(case: Any) -> None:
        case.call_and_validate(checks=CHECKS)

    keeps()
