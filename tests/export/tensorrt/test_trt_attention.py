"""Which attention has a kernel: what is refused by name, and that TensorRT-RTX agrees."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.errors import BackendError, UsageError
from engines.profiles import ShapeProfile, Span
from engines.tensors import DType
from export.tensorrt.attention import require_attention_kernel
from export.tensorrt.compile import compile_engine
from export.tensorrt.vendor import load
from tests.export.tensorrt.graphs import ATTENTION, write

SPAN = Span(1, 2, 4)
PROFILE = ShapeProfile("step", SPAN, SPAN, SPAN, Span(1, 64, 128))
SIZES = [  # heads, their size, whether there is a kernel
    (2, 16, True),
    (2, 24, True),
    (2, 256, True),
    (2, 8, False),
    (2, 20, False),
    (2, 264, False),
    (1, 64, False),
]


def is_taken(num_heads: int, head_dim: int, dtype: DType, vendor: str = "tensorrt-rtx") -> bool:
    try:
        require_attention_kernel(vendor, "m", num_heads=num_heads, head_dim=head_dim, dtype=dtype)
    except UsageError:
        return False
    return True


@pytest.mark.parametrize(("num_heads", "head_dim", "has_kernel"), SIZES)
def test_attention_without_a_kernel_is_refused_in_16_bits_by_rtx(
    num_heads: int, head_dim: int, has_kernel: bool
) -> None:
    for dtype in (DType.FLOAT16, DType.BFLOAT16):
        assert is_taken(num_heads, head_dim, dtype) is has_kernel
        assert is_taken(num_heads, head_dim, dtype, "tensorrt"), "nothing is known of its kernels"
    assert is_taken(num_heads, head_dim, DType.FLOAT32)


@pytest.mark.parametrize(
    ("num_heads", "head_dim", "words"),
    [
        (4, 20, "tiny has attention heads of size 20, .* float16 kernels for multiples of 8 from "),
        (4, 20, "from 16 to 256; use --precision fp32"),
        (1, 64, "tiny has 1 attention head, .* for 2 or more; use --precision fp32"),
    ],
)
def test_the_refusal_has_figures_and_a_way_out(num_heads: int, head_dim: int, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        require_attention_kernel(
            "tensorrt-rtx", "tiny", num_heads=num_heads, head_dim=head_dim, dtype=DType.FLOAT16
        )


@pytest.mark.rtx
@pytest.mark.parametrize(("num_heads", "head_dim", "has_kernel"), SIZES)
def test_rtx_compiles_what_is_taken_and_nothing_else(
    tmp_path: Path, num_heads: int, head_dim: int, has_kernel: bool
) -> None:
    """A release with more kernels, or fewer, shows here."""
    text = ATTENTION.replace("[B, 2, ", f"[B, {num_heads}, ").replace(", 64]", f", {head_dim}]")
    path, options = write(tmp_path, text), {"profiles": [PROFILE], "capabilities": ["8.9"]}
    rtx = load("tensorrt-rtx")
    if has_kernel:
        assert compile_engine(rtx, path, precision="fp16", **options)
    else:
        with pytest.raises(BackendError, match="could not compile"):
            compile_engine(rtx, path, precision="fp16", **options)
    write(tmp_path, text.replace("float16", "float"))
    assert compile_engine(rtx, path, precision="fp32", **options)
