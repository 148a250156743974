"""Where torch computes, and in which type it is fast there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engines.errors import UsageError

if TYPE_CHECKING:
    from torch import dtype

FAST_BF16 = ("avx512_bf16", "amx_bf16", "arm_bf16", "bf16")
"""CPU features, as torch names them, that make bfloat16 three times as fast as float32."""


def check(name: str) -> None:
    """Raise UsageError where torch knows no such device, or cannot use it."""
    import torch

    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(f"--device {name} cannot be used ({reason}); try --device cpu") from None


def fast_dtype(name: str) -> dtype:
    """bfloat16 where the device has it, else float32: slow to emulate on an older CPU."""
    import torch

    if torch.device(name).type != "cpu":
        return torch.bfloat16
    features = torch.cpu.get_capabilities()
    return torch.bfloat16 if any(features.get(each) for each in FAST_BF16) else torch.float32
