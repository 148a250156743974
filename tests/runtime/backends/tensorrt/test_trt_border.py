"""An engine that is not its manifest's: each kind of difference is found and named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engines.errors import BundleCorruptError
from engines.manifest import Limits
from tests.helpers.tensorrt_sessions import Bench

Plan = dict[str, Any]


def tensor(plan: Plan, name: str) -> dict[str, Any]:
    return next(each for each in (*plan["inputs"], *plan["outputs"]) if each["name"] == name)


def renamed(plan: Plan) -> None:
    tensor(plan, "num_draft")["name"] = "num_drafts"


def swapped(plan: Plan) -> None:
    plan["outputs"].append(tensor(plan, "num_draft"))
    plan["inputs"].remove(tensor(plan, "num_draft"))


def retyped(plan: Plan) -> None:
    tensor(plan, "tokens")["dtype"] = "int32"


def reshaped(plan: Plan) -> None:
    tensor(plan, "kv.0.value")["shape"][2] += 1


def widened(plan: Plan) -> None:
    tensor(plan, "logits")["shape"][2] += 1


def flattened(plan: Plan) -> None:
    del tensor(plan, "mask")["shape"][1]


def laid_out(plan: Plan) -> None:
    plan["layouts"]["kv.0.key"] = "CHW32"


def on_the_host(plan: Plan) -> None:
    plan["places"]["write_at"] = "HOST"


def fewer_profiles(plan: Plan) -> None:
    plan["profiles"].pop()


def narrower(plan: Plan) -> None:
    plan["profiles"][0]["batch"] = {"least": 1, "typical": 2, "most": 2}


def copied(plan: Plan) -> None:
    del plan["aliases"]["kv.0.key.next"]


def crossed(plan: Plan) -> None:
    plan["aliases"]["kv.0.key.next"] = "kv.0.value"


def also_aliased(plan: Plan) -> None:
    plan["aliases"]["next"] = "num_draft"


@pytest.mark.parametrize(
    ("edit", "difference"),
    [
        (renamed, "it lacks the tensor num_draft;"),
        (swapped, "num_draft has the direction TensorIOMode.OUTPUT, expected TensorIOMode.INPUT"),
        (retyped, "tokens has the type DataType.INT32, expected DataType.INT64"),
        (
            reshaped,
            "kv.0.value has the shape [-1, 1, 177, 64], expected ['B', 1, 176, 64]",
        ),
        (widened, "logits has the shape [-1, -1, 13], expected ['B', 'R', 12]"),
        (flattened, "mask has the shape [-1, -1, -1], expected ['B', 1, 'T', 'L']"),
        (laid_out, "kv.0.key has the layout TensorFormat.CHW32 in profile step"),
        (
            on_the_host,
            "write_at has the place TensorLocation.HOST, expected TensorLocation.DEVICE",
        ),
        (fewer_profiles, "it has 2 profiles, expected 3"),
        (
            narrower,
            (
                "profile step gives tokens the shapes [(1, 1), (2, 1), (2, 2)], expected "
                "[(1, 1), (3, 1), (3, 2)]"
            ),
        ),
        (copied, "kv.0.key.next is written to memory of its own, expected over kv.0.key"),
        (crossed, "kv.0.key.next is written over kv.0.value, expected over kv.0.key"),
        (also_aliased, "next is written over num_draft, expected memory of its own"),
    ],
)
def test_a_difference_is_named(
    tmp_path: Path, edit: Callable[[Plan], None], difference: str
) -> None:
    bench = Bench(tmp_path, edit=edit)
    with pytest.raises(BundleCorruptError) as caught:
        bench.open()
    assert "the target engine is not the one of its manifest: " in str(caught.value)
    assert difference in str(caught.value)
    bench.close()


@pytest.mark.parametrize("size", [1, -1])
def test_a_batch_that_cannot_vary_may_be_fixed(tmp_path: Path, size: int) -> None:
    """An engine for one text at a time says 1 where others say that it varies."""

    def edit(plan: Plan) -> None:
        for each in (*plan["inputs"], *plan["outputs"]):
            each["shape"] = [1 if size == 1 and dim == "B" else dim for dim in each["shape"]]

    bench = Bench(
        tmp_path, edit=edit, limits=Limits(max_len=64, max_batch=1, num_draft=2, max_branches=2)
    )
    bench.open(num_slots=1)
    bench.close()
