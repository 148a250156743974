"""The modes that commands run where none is named."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace

import pytest

from runtime.cli.options import possible_modes
from tests.helpers.tiny_bundle import tiny_bundle


def modes(
    has_draft: bool = True,
    drafter: str | None = None,
    device: str | None = None,
    num_draft: int | None = None,
    branches: int | None = None,
) -> list[str]:
    args = Namespace(num_draft=num_draft, branches=branches, device=device)
    return possible_modes(tiny_bundle(has_draft=has_draft), args, drafter)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["ar", "sd", "ssd", "auto"]),
        ({"branches": 0}, ["ar", "sd", "auto"]),
        ({"num_draft": 0}, ["ar", "auto"]),
        ({"drafter": "lookup"}, ["ar", "sd", "auto"]),
        ({"device": "cuda:0"}, ["ar", "sd", "ssd", "auto"]),
        ({"has_draft": False}, ["ar", "sd", "auto"]),  # by lookups
        ({"has_draft": False, "drafter": "model"}, ["ar", "auto"]),
        ({"has_draft": False, "device": "cuda:0"}, ["ar", "auto"]),  # which are for CPUs
        ({"has_draft": False, "device": "cpu"}, ["ar", "sd", "auto"]),
    ],
)
def test_a_mode_runs_where_something_can_draft(
    options: dict[str, object], expected: list[str]
) -> None:
    """Others were begun with, and refused when plain decoding had run."""
    assert modes(**options) == expected  # type: ignore[arg-type]


def test_engines_compiled_for_gpus_have_no_lookups() -> None:
    built = tiny_bundle(has_draft=False)
    bundle = replace(built, manifest=replace(built.manifest, backend="tensorrt-rtx"))
    args = Namespace(num_draft=None, branches=None, device=None)
    assert possible_modes(bundle, args) == ["ar", "auto"]
