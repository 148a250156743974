"""Products with codes under a name of their own, which a kernel of ours can take.

The name stands for the same two nodes (``plugins.coded_product.onnx``), so a runtime without that
kernel sees what was there before.
"""

from __future__ import annotations

import onnx_ir as ir

from export.graph.operators import carry_function
from plugins.coded_product import onnx as coded_product


def name_coded_products(model: ir.Model) -> None:
    """Make each MatMul by 8-bit codes in blocks one ssd::CodedProduct, in place.

    Others are left: by 4-bit codes, by codes with offsets, or in blocks that the kernel has not.
    """
    graph = model.graph
    for node in list(graph):
        matrix = node.inputs[1].producer() if node.op_type == "MatMul" and node.inputs[1] else None
        if matrix is None or not _holds_coded_blocks(matrix):
            continue
        codes, scales = matrix.inputs
        block = matrix.attributes["block_size"]
        node.domain, node.op_type = coded_product.DOMAIN, coded_product.OP_NAME
        node.resize_inputs(len(coded_product.INPUTS))
        node.replace_input_with(1, codes)
        node.replace_input_with(2, scales)
        node.attributes[coded_product.BLOCK] = ir.AttrInt64(coded_product.BLOCK, block.as_int())
        if not matrix.outputs[0].uses():
            graph.remove(matrix, safe=True)
    if any(node.op_type == coded_product.OP_NAME for node in graph):
        carry_function(model, coded_product.function_text(), coded_product.VERSION)


def _holds_coded_blocks(matrix: ir.Node) -> bool:
    if matrix.op_type != "DequantizeLinear" or len(matrix.inputs) != 2:
        return False
    codes = matrix.inputs[0]
    assert codes is not None
    is_int8 = codes.const_value is not None and codes.const_value.dtype == ir.DataType.INT8
    block = matrix.attributes.get("block_size")
    return is_int8 and block is not None and coded_product.fits(block.as_int())
