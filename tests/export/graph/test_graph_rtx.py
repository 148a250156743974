"""The canonical graph in TensorRT-RTX: every family and precision, compiled without a GPU.

A plan holds the compiler's own program as text; these tests read from it what has been fused.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache

import pytest

from engines.manifest import DRAFT, TARGET
from engines.profiles import shape_profiles
from export.build.options import BuildOptions
from export.checkpoint.api import open_checkpoint
from export.graph.api import GraphRequest, build_graph
from export.tensorrt.compile import compile_engine
from export.tensorrt.vendor import load
from tests.helpers.checkpoints import make_llama, make_qwen3
from tests.helpers.families import make_model
from tests.helpers.session_folder import session_folder

pytestmark = pytest.mark.rtx

LAYERS, VOCAB, HIDDEN = 2, 4000, 128
MAKERS = {"llama": make_llama, "qwen3": make_qwen3}
PRODUCTS = {"int8": rb"__myl_CastMulCastFc", "int4": rb"__myl_ReplCastMulCastFc"}
"""Kernels that multiply with codes, by how the layers are coded: dequantise, then product."""


@cache
def plan_of(
    family: str,
    precision: str,
    role: str = TARGET,
    *,
    tied: bool = True,
    hidden: int = HIDDEN,
    layers: int = LAYERS,
    max_batch: int = 1,
) -> bytes:
    """A compiled tiny engine with all the profiles that the runtime calls."""
    folder = session_folder("rtx-graph")
    sizes = {"vocab": VOCAB, "hidden": hidden, "intermediate": 2 * hidden, "layers": layers}
    if family in MAKERS:
        MAKERS[family](folder, tied=tied, head_dim=32, tokenizer=False, **sizes)
    else:
        make_model(folder, family)
    source = open_checkpoint(folder)
    options = BuildOptions(
        "t",
        backend="tensorrt-rtx",
        precision=precision,
        max_len=200,
        max_batch=max_batch,
        num_draft=3,
        max_branches=4,
    )
    kv = options.kv_layout(role, source.spec)
    build_graph(
        GraphRequest(
            role=role,
            spec=source.spec,
            tensor=source.tensor,
            names=source.tensor_names(),
            limits=options.limits,
            kv=kv,
            precision=precision,
            block=options.block,
            backend=options.backend,
        )
    ).save(folder)
    return compile_engine(
        load("tensorrt-rtx"),
        folder / "model.onnx",
        profiles=shape_profiles(
            role, max_batch=max_batch, num_draft=3, max_branches=4, rows=kv.rows
        ),
        capabilities=["8.9", "12.0"],
        precision=precision,
    )


def kernels(plan: bytes) -> Counter[bytes]:
    """The generated kernels that the plan's programs call, one program a profile."""
    return Counter(re.findall(rb"name=(__myl_\w+)", plan))


@pytest.mark.parametrize("role", [TARGET, DRAFT])
@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32", "int8", "int4"])
def test_every_precision_compiles_for_both_roles(precision, role):
    """The guards of ``compile_engine`` hold: no input is lost, each cache is updated in place."""
    assert len(plan_of("llama", precision, role)) > VOCAB * HIDDEN


@pytest.mark.parametrize("tied", [True, False])
def test_qwen3_compiles_with_a_head_of_its_own_and_without(tied):
    assert len(plan_of("qwen3", "fp16", tied=tied)) > VOCAB * HIDDEN * 2


@pytest.mark.parametrize(
    ("family", "precision", "role"),
    [
        ("qwen2-yarn", "fp16", TARGET),
        ("qwen2-window", "int8", DRAFT),
        ("mistral", "fp16", DRAFT),
        ("gemma3-linear-softcap", "bf16", TARGET),
        ("gemma3", "fp32", DRAFT),
        ("phi3-long", "fp16", TARGET),
    ],
)
def test_what_the_families_add_compiles(family, precision, role):
    """Biases, windows, part-rotated heads, Gelu, softcap: the guards of a build hold for all."""
    assert len(plan_of(family, precision, role)) > 320 * 64


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_every_quantised_matrix_is_multiplied_as_codes(precision):
    """A matrix that is not fused is written out as fp16 at every call: slower than fp16 itself."""
    found = kernels(plan_of("llama", precision))
    layers, tables = PRODUCTS[precision], PRODUCTS["int8"]
    expected = Counter({layers: 3 * 4 * LAYERS}) + Counter({tables: 3})
    assert Counter({name: found[name] for name in expected}) == expected
    alone = {name for name in found if re.fullmatch(rb"__myl_(Repl)?CastMulCast", name)}
    assert not alone


@pytest.mark.parametrize("precision", ["fp16", "int8", "int4"])
def test_a_tied_table_is_once_in_the_plan(precision):
    table = VOCAB * HIDDEN * (2 if precision == "fp16" else 1)
    saved = len(plan_of("llama", precision, tied=False)) - len(plan_of("llama", precision))
    assert 0.95 * table < saved < 1.2 * table


@pytest.mark.parametrize("role", [TARGET, DRAFT])
def test_a_matrix_is_once_in_the_plan_whatever_the_batch(role):
    """With B fixed where one slot is fed and free elsewhere, qkv and gate_up stood there twice."""
    width = 768
    one, four = (
        len(plan_of("llama", "fp16", role, hidden=width, layers=1, max_batch=batch))
        for batch in (1, 4)
    )
    gate_up = 2 * width * 2 * width * 2
    assert four - one < 0.5 * gate_up


def test_a_quantised_lookup_does_not_expand_the_table():
    """Scratch memory holds what kernels write: a table in fp16 would be the largest of it."""
    plan = plan_of("llama", "int8")
    scratch = re.findall(rb"region = \{ name=devmem\w+ size=(\d+)", plan)
    lookups = [name for name in kernels(plan) if b"MulCastGath" in name]
    assert lookups
    assert len(scratch) > 3
    assert VOCAB * HIDDEN * 2 not in {int(size) for size in scratch}
