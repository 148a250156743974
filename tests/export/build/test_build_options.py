from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from engines.errors import UsageError
from engines.manifest import DRAFT, TARGET
from export.build.options import BuildOptions
from export.checkpoint.api import open_checkpoint
from export.cli.entry import build_parser
from tests.helpers.checkpoints import make_llama


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"backend": "tensorrt"}, "cannot build for tensorrt yet; use --backend onnxruntime"),
        ({"backend": "tensorrt-rtx"}, "cannot build for tensorrt-rtx yet"),
        ({"backend": "abacus"}, "--backend abacus is unknown; choose onnxruntime"),
        ({"precision": "int4"}, "--precision int4 is unknown; choose int8 or fp32"),
        ({"block": 48}, "--block 48 is unknown; choose 64 or 32"),
        ({"max_len": 1}, "--max-len is 1, it must be at least 2"),
        ({"max_batch": 0}, "--max-batch is 0"),
        ({"num_draft": -1}, "--num-draft is -1, it must be between 0 and 16"),
        ({"num_draft": 17}, "--num-draft is 17"),
        ({"max_branches": 65}, "--max-branches is 65, it must be between 0 and 64"),
    ],
)
def test_a_value_that_cannot_be_built_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        BuildOptions("t", **change)  # type: ignore[arg-type]
    assert words in str(caught.value)


def test_the_bundle_is_named_after_the_target_unless_told_otherwise() -> None:
    assert BuildOptions("smollm2-135m").place == Path("engines/bundles/smollm2-135m")
    assert BuildOptions("org/Some-Model").place == Path("engines/bundles/Some-Model")
    assert BuildOptions("/models/tiny.gguf").place == Path("engines/bundles/tiny")
    assert BuildOptions("models/tiny/").place == Path("engines/bundles/tiny")
    assert BuildOptions("x", out=Path("y")).place == Path("y")
    for nameless in (".", "..", "/"):
        with pytest.raises(UsageError, match="--out"):
            _ = BuildOptions(nameless).place


@pytest.mark.parametrize(
    "options",
    [
        BuildOptions("smollm2-135m", "smollm2-135m-draft", Path("engines/bundles/demo")),
        BuildOptions("/a folder/it's", None, Path("b"), precision="fp32", max_len=7),
        BuildOptions("t", "d", None, block=32, max_batch=3, num_draft=0, max_branches=1),
    ],
)
def test_the_rebuild_command_builds_the_same(options: BuildOptions) -> None:
    words = shlex.split(options.command())
    assert words[:3] == ["python", "-m", "export"]
    args = build_parser().parse_args(words[3:])
    again = BuildOptions(
        target=args.target,
        draft=None if args.draft == "none" else args.draft,
        out=args.out,
        backend=args.backend,
        precision=args.precision,
        block=args.block,
        max_len=args.max_len,
        max_batch=args.max_batch,
        num_draft=args.num_draft,
        max_branches=args.max_branches,
    )
    assert again.command() == options.command()
    assert again.limits == options.limits
    assert again.place == options.place


def test_only_the_draft_has_rows_for_branches(tmp_path: Path) -> None:
    spec = open_checkpoint(make_llama(tmp_path)).spec
    options = BuildOptions("t", "d", max_len=100, num_draft=3, max_branches=5)
    target, draft = options.kv_layout(TARGET, spec), options.kv_layout(DRAFT, spec)
    assert (target.scratch_rows, draft.scratch_rows) == (0, 15)
    assert target.trunk_rows == draft.trunk_rows == 112
    assert (target.num_layers, target.num_kv_heads, target.head_dim) == (2, 2, 8)


@pytest.mark.parametrize("name", ["a\nb", "a\u2028", "a\n", "\udcff"])
@pytest.mark.parametrize("option", ["target", "draft", "out"])
def test_a_name_that_no_manifest_can_hold_is_refused(option: str, name: str) -> None:
    """It was a traceback, after minutes of building."""
    with pytest.raises(UsageError, match=f"--{option} .* one line of UTF-8"):
        BuildOptions(**{"target": "t", option: name})  # type: ignore[arg-type]
