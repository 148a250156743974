from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import engines.manifest
from engines.errors import UsageError
from engines.manifest import DRAFT, TARGET
from engines.tensors import DType
from export.build.options import PRECISIONS, BuildOptions, default_precision
from export.checkpoint.api import open_checkpoint
from export.cli.entry import build_parser
from tests.helpers.checkpoints import make_llama


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"backend": "abacus"}, "--backend abacus is unknown; choose onnxruntime, tensorrt or"),
        ({"precision": "fp8"}, "--precision fp8 is unknown; choose int8, fp32 or int4"),
        *(
            (
                {"precision": name},
                f"--precision {name} does not fit --backend onnxruntime; choose int8, fp32 or int4",
            )
            for name in ("fp16", "bf16")
        ),
        ({"block": 48}, "--block 48 is unknown; choose 64 or 32"),
        (
            {"precision": "int4", "block": 64},
            "--block 64 does not fit --precision int4 on onnxruntime; use --block 32",
        ),
        (
            {"backend": "tensorrt", "precision": "int4", "block": 32},
            "--block 32 does not fit --precision int4 on tensorrt; use --block 64",
        ),
        ({"capabilities": ("8.9",)}, "--compute-capability is for compiled engines"),
        ({"keep_onnx": False}, "--no-onnx is for compiled engines"),
        ({"max_len": 1}, "--max-len is 1, it must be at least 2"),
        ({"max_batch": 0}, "--max-batch is 0"),
        # Sizes that follow from these are beyond a float: "int too large to convert".
        ({"max_len": 10**400}, "--max-len is a number of 401 digits, it must be at most 92233720"),
        ({"max_batch": 10**400}, "--max-batch is a number of 401 digits"),
        ({"max_batch": 2**63}, "--max-batch is a number of 19 digits, it must be at most 922337"),
        ({"num_draft": -1}, "--num-draft is -1, it must be between 0 and 16"),
        ({"num_draft": 17}, "--num-draft is 17"),
        ({"max_branches": 65}, "--max-branches is 65, it must be between 0 and 64"),
    ],
)
def test_a_value_that_cannot_be_built_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        BuildOptions("t", **change)  # type: ignore[arg-type]
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_manifest_may_name_every_precision_and_no_other() -> None:
    assert sorted(engines.manifest.PRECISIONS) == sorted(PRECISIONS)


@pytest.mark.parametrize("backend", ["tensorrt", "tensorrt-rtx"])
def test_a_gpu_engine_has_all_precisions_and_fp16_unless_told_otherwise(backend: str) -> None:
    assert default_precision(backend) == "fp16"
    assert default_precision("onnxruntime") == "int8"
    for precision, cache in (
        ("fp16", DType.FLOAT16),
        ("bf16", DType.BFLOAT16),
        ("fp32", DType.FLOAT32),
        ("int8", DType.FLOAT16),
        ("int4", DType.FLOAT16),
    ):
        options = BuildOptions("t", backend=backend, precision=precision)
        assert options.arithmetic.activation is cache
        assert options.scale_block == (64 if precision == "int4" else None)


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
        BuildOptions("t", precision="int4"),
        BuildOptions("t", backend="tensorrt-rtx", precision="int4", block=32),
        BuildOptions(
            "t",
            "d",
            Path("b"),
            backend="tensorrt",
            precision="bf16",
            capabilities=("8.9", "12.0"),
            keep_onnx=False,
        ),
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
        capabilities=tuple(args.compute_capability),
        keep_onnx=not args.no_onnx,
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
    assert target.dtype is draft.dtype is DType.FLOAT32


@pytest.mark.parametrize("name", ["a\nb", "a\u2028", "a\n", "\udcff"])
@pytest.mark.parametrize("option", ["target", "draft", "out"])
def test_a_name_that_no_manifest_can_hold_is_refused(option: str, name: str) -> None:
    """It was a traceback, after minutes of building."""
    with pytest.raises(UsageError, match=f"--{option} .* one line of UTF-8"):
        BuildOptions(**{"target": "t", option: name})  # type: ignore[arg-type]
