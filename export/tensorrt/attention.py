"""The attention that TensorRT-RTX has a kernel for, so that a model without one is refused by name.

Found with release 1.7, by compiling heads of 43 sizes from 2 to 512 and 1 to 256 of them; other
sizes end in an assertion of the compiler. float32 has no kernel at all and is built of single steps
instead (``network.make_decomposable``), which takes every size.
"""

from __future__ import annotations

from engines.errors import UsageError
from engines.tensors import DType
from export.tensorrt.vendor import RTX

HEAD_DIMS = range(16, 257, 8)
LEAST_HEADS = 2


def require_attention_kernel(
    vendor: str, name: str, *, num_heads: int, head_dim: int, dtype: DType
) -> None:
    """UsageError when ``vendor`` cannot compile the attention of the model ``name`` in ``dtype``.

    Nothing is known of standard TensorRT's kernels; it has its own say when it compiles.
    """
    if vendor != RTX or dtype is DType.FLOAT32:
        return
    if head_dim not in HEAD_DIMS:
        has = f"attention heads of size {head_dim}"
        takes = f"multiples of {HEAD_DIMS.step} from {HEAD_DIMS[0]} to {HEAD_DIMS[-1]}"
    elif num_heads < LEAST_HEADS:
        has, takes = f"{num_heads} attention head", f"{LEAST_HEADS} or more"
    else:
        return
    raise UsageError(
        f"{name} has {has}, {vendor} has {dtype.value} kernels for {takes}; "
        "use --precision fp32, or another --backend"
    )
