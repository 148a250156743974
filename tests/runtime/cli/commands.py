"""Command lines of ``generate`` and ``compare`` over a FakeBundle."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runtime.cli.entry import main
from tests.runtime.cli.fake_llm import FakeBundle

GENERATE = ["generate", "--bundle", "b"]
COMPARE = ["compare", "--bundle", "b"]


def run_json(
    bundle: FakeBundle, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, dict[str, Any], dict[str, Any]]:
    code = main([*COMPARE, "--json", *arguments], bundle.open)
    record = json.loads(capsys.readouterr().out)
    return code, {mode["mode"]: mode for mode in record["modes"]}, record
