"""What runtime/deploy is compared with: its files, what the server exports, the options it has."""

from __future__ import annotations

import asyncio
import shlex
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import promql_parser
import yaml
from prometheus_client.parser import text_string_to_metric_families

from runtime.cli.entry import build_parser
from tests.helpers.readme import ROOT, Block, blocks
from tests.runtime.serve.house import House

DEPLOY = ROOT / "runtime" / "deploy"
PAGE = DEPLOY / "operations.md"
RULES = DEPLOY / "alerts.yml"
LONGEST_STOP_S = 45
"""What the page, the images and the units promise to wait."""


def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def page_blocks(*languages: str) -> list[Block]:
    return [block for block in blocks(page()) if block.language in languages]


def page_commands() -> list[str]:
    """Without what they say about themselves."""
    found = [block for block in page_blocks("") if "seconds of a round" not in block.text]
    return [command for block in found for command in block.commands()]


def served_as(words: list[str]) -> Namespace:
    """Arguments of ``python -m runtime``, as our parser reads them; UsageError if it does not."""
    return build_parser().parse_args(words)


@dataclass(frozen=True)
class Exported:
    """A family of ``/metrics``: its samples' names and their labels."""

    name: str
    samples: frozenset[str]
    labels: frozenset[str]


@cache
def exported() -> dict[str, Exported]:
    """By family."""

    async def ask() -> str:
        house = House()
        async with house.client() as client:
            await client.post("/v1/completions", json={"prompt": "hi"})
            return (await client.get("/metrics")).text

    endings = {
        "counter": ("_total",),
        "gauge": ("",),
        "histogram": ("_bucket", "_sum", "_count"),
    }
    found = {}
    for family in text_string_to_metric_families(asyncio.run(ask())):
        labels = {label for sample in family.samples for label in sample.labels}
        names = frozenset(family.name + ending for ending in endings[family.type])
        found[family.name] = Exported(family.name, names, frozenset(labels))
    return found


def exported_samples() -> set[str]:
    return {name for family in exported().values() for name in family.samples}


def rules() -> list[dict[str, Any]]:
    """Alerts and recorded figures, in order."""
    loaded = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    return [rule for group in loaded["groups"] for rule in group["rules"]]


def recorded() -> set[str]:
    return {rule["record"] for rule in rules() if "record" in rule}


def selectors(expression: Any) -> Iterator[promql_parser.VectorSelector]:
    """All series that a parsed expression reads."""
    match expression:
        case promql_parser.VectorSelector():
            yield expression
        case promql_parser.MatrixSelector():
            yield expression.vector_selector
        case promql_parser.BinaryExpr():
            yield from selectors(expression.lhs)
            yield from selectors(expression.rhs)
        case promql_parser.Call():
            for argument in expression.args:
                yield from selectors(argument)
        case promql_parser.AggregateExpr() | promql_parser.ParenExpr():
            yield from selectors(expression.expr)
        case promql_parser.NumberLiteral():
            return
        case _:
            raise AssertionError(f"{type(expression).__name__} is new here")


def words_of(command: str) -> list[str]:
    return shlex.split(command, comments=True)
