"""The memory plan: what is counted where, how it is refused, and that loading keeps to it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from engines.bundle import Bundle, open_bundle
from engines.errors import CapacityError
from runtime.backends.device_blocks import block_bytes, default_copies, pool_bytes
from runtime.backends.device_caches import staging_bytes
from runtime.backends.tensorrt.session import attended_lengths
from runtime.devices import parse_devices
from runtime.memory_plan import (
    CONTEXT_BYTES,
    MIB,
    MemoryPlan,
    in_words,
    plan_memory,
    require_room,
)
from tests.engines.tiny_bundles import write_compiled
from tests.helpers.tiny_bundle import tiny_bundle


def plan(device: str, num_slots: int = 3, bundle: Bundle | None = None) -> MemoryPlan:
    bundle = bundle or tiny_bundle()
    return plan_memory(
        bundle.engines, parse_devices(device), num_slots=num_slots, num_draft=4, num_branches=6
    )


def uses(found: MemoryPlan, device: str) -> dict[tuple[str, str], int]:
    [items] = [each.items for each in found.devices if each.device == device]
    return {(item.role, item.what): item.num_bytes for item in items}


@pytest.mark.parametrize(
    ("device", "on"),
    [
        ("cpu", {"cpu": {"target", "draft"}}),
        ("cuda:0", {"cuda:0": {"target", "draft"}}),
        ("cuda:0,cuda:1", {"cuda:0": {"target"}, "cuda:1": {"draft"}}),
        ("cuda:1,cuda:0", {"cuda:0": {"draft"}, "cuda:1": {"target"}}),
        ("cuda:0,cpu", {"cuda:0": {"target"}, "cpu": {"draft"}}),
    ],
)
def test_an_engine_is_counted_where_it_runs(device: str, on: dict[str, set[str]]) -> None:
    found = plan(device)
    weights = {
        each.device: {item.role for item in each.items if item.what == "weights"}
        for each in found.devices
    }
    assert {place: roles for place, roles in weights.items() if roles} == on
    for each in found.devices:
        assert each.total == sum(item.num_bytes for item in each.items)
        assert ("-", "vendor libraries") in uses(found, each.device) or each.device == "cpu"


def test_sizes_are_those_of_the_manifests() -> None:
    bundle = tiny_bundle()
    found = uses(plan("cuda:0"), "cuda:0")
    for engine in bundle.engines:
        assert found[engine.role, "weights"] == engine.weight_bytes
        assert found[engine.role, "caches"] == engine.kv.bytes_for(3)
        assert found[engine.role, "moving caches"] == staging_bytes(engine.kv, engine.lengths, 3)
        blocks = sum(block_bytes(engine, 3, copy) for copy in range(default_copies(engine)))
        assert found[engine.role, "logits and inputs"] == blocks + pool_bytes(engine, 3)


def test_a_compiled_engine_is_its_plan_and_its_caches_do_not_move(tmp_path: Path) -> None:
    bundle = open_bundle(write_compiled(tmp_path / "c"))
    found = uses(plan("cuda:0", 2, bundle), "cuda:0")
    assert found["target", "weights"] == len(b"plan of target")
    assert ("target", "moving caches") not in found


def test_contexts_and_graphs_of_compiled_engines_have_a_margin(tmp_path: Path) -> None:
    """They are megabytes each, and there is one for every call of every number of texts."""
    bundle = open_bundle(write_compiled(tmp_path / "c"))
    margins = [
        {
            role: size
            for (role, what), size in uses(plan("cuda:0", num_slots, bundle), "cuda:0").items()
            if what == "contexts and graphs"
        }
        for num_slots in (1, 2)
    ]
    lengths = len(attended_lengths(bundle.target.lengths))
    assert margins[0]["target"] == (1 + 2 * lengths) * CONTEXT_BYTES
    assert margins[1]["target"] == (1 + 4 * lengths) * CONTEXT_BYTES
    assert not [what for _, what in uses(plan("cuda:0"), "cuda:0") if what.startswith("contexts")]
    [line] = [
        line
        for line in plan("cuda:0", 2, bundle).as_text().splitlines()
        if "target  contexts and graphs" in line
    ]
    assert line.endswith("(estimate)")


def test_plain_decoding_needs_no_draft() -> None:
    found = plan_memory(
        (tiny_bundle().target,), parse_devices("cuda:0"), num_slots=1, num_draft=0, num_branches=0
    )
    assert {role for role, _ in uses(found, "cuda:0")} == {"target", "-"}


def test_figures_are_shown_with_what_is_free() -> None:
    found = plan("cuda:0,cpu")
    text = found.as_text({"cuda:0": 2**30, "cpu": None}.__getitem__)
    head, *_ = text.splitlines()
    total = in_words(found.devices[0].total)
    assert head == f"memory on cuda:0 for 3 at once: {total} of 1.0 GiB free"
    assert "  target  weights " in text
    assert "(estimate)" in text
    record = found.as_record({"cuda:0": 2**30, "cpu": None}.__getitem__)
    [gpu, cpu] = record["devices"]  # type: ignore[misc]
    assert (gpu["free_bytes"], cpu["free_bytes"]) == (2**30, None)  # type: ignore[index]
    assert gpu["total_bytes"] == found.devices[0].total  # type: ignore[index]


def refused(device: str, free: dict[str, int | None], num_slots: int = 3) -> str:
    with pytest.raises(CapacityError) as caught:
        require_room(partial(plan, device), num_slots, parse_devices(device), free.get)
    return str(caught.value)


def test_what_fits_is_given_back_and_what_nobody_knows_is_let_through() -> None:
    for free in ({}, {"cuda:0": 2**40, "cpu": 0}):
        found = require_room(
            partial(plan, "cuda:0"),
            3,
            parse_devices("cuda:0"),
            lambda name, free=free: free.get(name),
        )
        assert found == plan("cuda:0")


def test_too_many_slots_are_refused_with_the_number_that_fits() -> None:
    free = plan("cuda:0", 2).devices[0].total
    message = refused("cuda:0", {"cuda:0": free})
    assert f"cuda:0 has {in_words(free)} free" in message
    assert f"{in_words(plan('cuda:0').devices[0].total)} are needed for 3 at once" in message
    items = plan("cuda:0").devices[0].items
    guessed = in_words(sum(item.num_bytes for item in items if item.is_estimate))
    assert f"; {guessed} are estimates); " in message
    assert message.endswith("use --batch 2 or less")


def test_a_gpu_that_both_engines_share_is_refused_with_another_device_for_the_draft() -> None:
    assert refused("cuda:0", {"cuda:0": MIB}).endswith("--device cuda:0,cuda:N")


def test_the_gpu_that_is_short_is_named() -> None:
    message = refused("cuda:0,cuda:1", {"cuda:0": 2**40, "cuda:1": MIB})
    assert message.startswith("cuda:1 has 1.0 MiB free")
    assert "--max-len" in message


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (MIB, "1.0 MiB"), (2**41, "2048.0 GiB")],
)
def test_sizes_for_people(size: int, words: str) -> None:
    assert in_words(size) == words
