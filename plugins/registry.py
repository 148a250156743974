"""The ssd:: operators that choose tokens inside a graph, on every backend, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from plugins.sample import onnx as sample_onnx
from plugins.sample import reference as sample_reference
from plugins.verify import onnx as verify_onnx
from plugins.verify import reference as verify_reference


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator in its forms.

    reference      numpy arrays in the order of `inputs` -> a tuple in the order of `outputs`
    function_text  the same in ONNX textual syntax, for `onnx.parser.parse_function`
    """

    name: str
    domain: str
    version: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    reference: Callable[..., tuple[npt.NDArray[np.int64], ...]]
    function_text: str


OPERATORS: Mapping[str, Operator] = MappingProxyType(
    {
        verify_onnx.OP_NAME: Operator(
            name=verify_onnx.OP_NAME,
            domain=verify_onnx.DOMAIN,
            version=verify_onnx.VERSION,
            inputs=verify_onnx.INPUTS,
            outputs=verify_onnx.OUTPUTS,
            reference=verify_reference.verify,
            function_text=verify_onnx.function_text(),
        ),
        sample_onnx.OP_NAME: Operator(
            name=sample_onnx.OP_NAME,
            domain=sample_onnx.DOMAIN,
            version=sample_onnx.VERSION,
            inputs=sample_onnx.INPUTS,
            outputs=sample_onnx.OUTPUTS,
            reference=sample_reference.sample,
            function_text=sample_onnx.function_text(),
        ),
    }
)
