from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import pytest

from engines.bundle import Bundle
from engines.compat import reasons, require
from engines.errors import BundleIncompatibleError
from tests.engines.tiny_bundles import REBUILD, opened


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return opened(tmp_path / "b")


def test_a_bundle_within_its_limits_has_no_reasons(bundle: Bundle) -> None:
    assert reasons(bundle, backend="onnxruntime") == []
    at_limits = {"num_draft": 4, "branches": 8, "max_len": 96, "batch": 2}
    assert reasons(bundle, backend="onnxruntime", **at_limits) == []
    require(bundle, backend="onnxruntime", **at_limits)


@pytest.mark.parametrize(
    ("asked", "words", "option"),
    [
        ({"num_draft": 5}, "K (num_draft) = 5 is above the built limit 4", "--num-draft 5"),
        ({"branches": 9}, "W (branches) = 9 is above the built limit 8", "--max-branches 9"),
        ({"max_len": 97}, "max_len = 97 is above the built limit 96", "--max-len 97"),
        ({"batch": 3}, "batch = 3 is above the built limit 2", "--max-batch 3"),
    ],
)
def test_more_than_was_built_is_refused_with_the_command_that_builds_it(
    bundle: Bundle, asked: dict[str, int], words: str, option: str
) -> None:
    (reason,) = reasons(bundle, backend="onnxruntime", **asked)
    assert words in reason
    assert option in reason
    before, after = shlex.split(REBUILD), shlex.split(reason.split("rebuild: ")[1])
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 1
    with pytest.raises(BundleIncompatibleError) as caught:
        require(bundle, backend="onnxruntime", **asked)
    assert reason in str(caught.value)
    assert str(bundle.path) in str(caught.value)


def test_every_reason_is_listed(bundle: Bundle) -> None:
    found = reasons(bundle, backend="tensorrt", num_draft=99, branches=99)
    assert len(found) == 3
    assert "built for onnxruntime, this session runs tensorrt" in found[0]
    assert "--backend tensorrt" in found[0]


def test_another_schema_is_a_reason(bundle: Bundle) -> None:
    target = dataclasses.replace(bundle.target, schema=7)
    old = dataclasses.replace(bundle, target=target)
    (reason,) = reasons(old, backend="onnxruntime")
    assert "schema 7" in reason


def test_a_draft_that_speaks_ids_the_target_lacks_is_a_reason(bundle: Bundle) -> None:
    assert bundle.draft is not None
    model = dataclasses.replace(bundle.draft.model, vocab_size=65)
    pair = dataclasses.replace(bundle, draft=dataclasses.replace(bundle.draft, model=model))
    (reason,) = reasons(pair, backend="onnxruntime")
    assert "the draft has 65 token ids, the target only 64" in reason


def test_a_rebuild_command_without_the_option_is_shown_as_it_is(bundle: Bundle) -> None:
    for line in ("make demo", "unbalanced 'quote"):
        manifest = dataclasses.replace(bundle.manifest, rebuild=line)
        changed = dataclasses.replace(bundle, manifest=manifest)
        (reason,) = reasons(changed, backend="onnxruntime", num_draft=9)
        assert reason.endswith(f"rebuild: {line}")
