from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import pytest

from engines.bundle import Bundle, open_bundle, seal_bundle
from engines.compat import reasons, require
from engines.errors import BundleCorruptError, BundleIncompatibleError
from engines.manifest import dump, load_bundle, load_engine
from tests.engines.tiny_bundles import (
    BUILDER,
    REBUILD,
    REBUILD_COMPILED,
    opened,
    write_compiled,
)

RTX = "tensorrt-rtx"


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
    assert len(found) == 2
    assert "built for onnxruntime, this session runs tensorrt" in found[0]
    assert "--backend tensorrt" in found[0]


def test_all_limits_that_are_exceeded_are_one_refusal_with_one_rebuild(bundle: Bundle) -> None:
    """Who mends one limit after another rebuilds once for each."""
    (reason,) = reasons(bundle, backend="onnxruntime", num_draft=6, branches=30, max_len=9)
    assert "K (num_draft) = 6 is above the built limit 4, W (branches) = 30 is above" in reason
    assert "--num-draft 6" in reason
    assert "--max-branches 30" in reason
    assert "max_len" not in reason


def test_another_schema_is_a_reason(bundle: Bundle) -> None:
    target = dataclasses.replace(bundle.target, schema=7)
    old = dataclasses.replace(bundle, target=target)
    (reason,) = reasons(old, backend="onnxruntime")
    assert "schema 7" in reason


def test_a_draft_that_speaks_ids_the_target_lacks_is_a_reason(bundle: Bundle) -> None:
    """V4: elsewhere such an id reached the target's embedding lookup."""
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


@pytest.fixture
def compiled(tmp_path: Path) -> Bundle:
    return open_bundle(write_compiled(tmp_path / "c"))


def test_a_compiled_bundle_suits_its_builder_and_its_gpus(compiled: Bundle) -> None:
    for capability in ("8.9", "12.0"):
        assert reasons(compiled, backend=RTX, builder=BUILDER, capability=capability) == []
    require(compiled, backend=RTX)


def test_a_plan_of_another_version_is_refused_with_the_rebuild_command(compiled: Bundle) -> None:
    """T4: TensorRT itself answers with a tag mismatch, or with no engine at all."""
    with pytest.raises(BundleIncompatibleError) as caught:
        require(compiled, backend=RTX, builder="tensorrt-rtx 1.8.0.1")
    message = str(caught.value)
    assert "target engine was compiled by tensorrt-rtx 1.7.1.116, which alone can read" in message
    assert "tensorrt-rtx 1.8.0.1 is here" in message
    assert message.endswith(f"rebuild: {REBUILD_COMPILED}")


def test_a_gpu_that_the_plan_was_not_compiled_for_is_refused(compiled: Bundle) -> None:
    """T8."""
    target, draft = reasons(compiled, backend=RTX, builder=BUILDER, capability="8.6")
    assert "the target engine was compiled for compute capability 8.9 12.0" in target
    assert "this GPU has 8.6" in target
    assert "the draft engine" in draft
    expected = REBUILD_COMPILED.replace("8.9 12.0", "8.6")
    assert target.endswith(f"rebuild: {expected}")


def test_a_bundle_for_every_gpu_gets_the_option_that_it_was_built_without(
    compiled: Bundle,
) -> None:
    line = REBUILD_COMPILED.replace(" --compute-capability 8.9 12.0", "")
    manifest = dataclasses.replace(compiled.manifest, rebuild=line)
    changed = dataclasses.replace(compiled, manifest=manifest)
    reason, _ = reasons(changed, backend=RTX, capability="7.5")
    assert reason.endswith(f"rebuild: {line} --compute-capability 7.5")


def test_a_manifest_edited_to_another_version_is_refused(tmp_path: Path) -> None:
    """The edit alone is noticed by the file's hash; with a matching hash the version is."""
    folder = write_compiled(tmp_path / "e")
    for role in ("target", "draft"):
        path = folder / role / "manifest.json"
        manifest = load_engine(path.read_text(encoding="utf-8"), str(path))
        assert manifest.plan is not None
        older = dataclasses.replace(manifest.plan, builder="tensorrt-rtx 1.6.1.120")
        path.write_text(dump(dataclasses.replace(manifest, plan=older)), encoding="utf-8")
    with pytest.raises(BundleCorruptError, match=r"manifest\.json"):
        open_bundle(folder)
    seal_bundle(folder, load_bundle((folder / "bundle.json").read_text(encoding="utf-8"), "b"))
    with pytest.raises(BundleIncompatibleError, match=r"tensorrt-rtx 1\.6\.1\.120, which alone"):
        require(open_bundle(folder), backend=RTX, builder=BUILDER)


def test_another_backend_than_the_compiled_one_gets_a_command_that_builds(
    compiled: Bundle,
) -> None:
    """fp16 and capabilities are of no use there."""
    (reason,) = reasons(compiled, backend="onnxruntime")
    assert "the bundle was built for tensorrt-rtx, this session runs onnxruntime" in reason
    check_command_for_the_cpu(compiled, reason)


def test_compiled_engines_do_not_run_on_a_cpu(compiled: Bundle, bundle: Bundle) -> None:
    (reason,) = reasons(compiled, backend=RTX, on_gpu=False)
    assert "run on a GPU alone: --device cuda:0" in reason
    check_command_for_the_cpu(compiled, reason)
    assert reasons(compiled, backend=RTX, on_gpu=True) == []
    for on_gpu in (True, False):
        assert reasons(bundle, backend="onnxruntime", on_gpu=on_gpu) == []


def check_command_for_the_cpu(compiled: Bundle, reason: str) -> None:
    words = shlex.split(reason.split("rebuild: ")[1])
    assert words[words.index("--backend") + 1] == "onnxruntime"
    assert words[words.index("--out") + 1] == f"{compiled.path}-onnxruntime"
    assert not {"--precision", "--compute-capability", "8.9", "12.0"} & set(words)
    assert words[words.index("--max-len") + 1] == "96"
