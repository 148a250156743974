"""The ssd:: layers in TensorRT-RTX: parsed and compiled for GPUs that need not be here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from plugins import tensorrt as plugins
from plugins.sample.tensorrt import SIGNATURE as SAMPLE
from plugins.verify.tensorrt import SIGNATURE as VERIFY
from tests.plugins.layer_models import sample_model, verify_model

pytestmark = pytest.mark.rtx

ROOT = Path(__file__).parents[2]
PLUGIN = "PLUGIN_V3"
CAPABILITIES = ["SM89", "SM120"]
VERIFY_PROFILE = {
    "logits": [[1, 1, 100], [2, 5, 100], [8, 17, 100]],
    "drafts": [[1, 0], [2, 4], [8, 16]],
    "num_draft": [[1], [2], [8]],
}


def fresh(function: str, **arguments: object) -> Any:
    """What a function of ``rtx_process`` returns in a new process."""
    script = str(Path(__file__).with_name("rtx_process.py"))
    done = subprocess.run(
        [sys.executable, script, function, json.dumps(arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("logits", ["float", "float16", "bfloat16"])
def test_verify_is_compiled_as_a_plugin_layer(tmp_path: Path, logits: str) -> None:
    """The parser ends the process at the first plugin node if it misses its own library."""
    model = verify_model(tmp_path, logits=logits)
    found = fresh("build", model=model, profile=VERIFY_PROFILE, capabilities=CAPABILITIES)
    assert found["layers"] == [PLUGIN]
    assert found["outputs"] == {"accepted": ["INT64", -1], "next": ["INT64", -1]}
    assert found["refusals"] == []
    for text in ("Verify", "ssd", "meaning", VERIFY.digest):
        assert text in found["plan"], f"the plan does not hold {text}"


@pytest.mark.parametrize("logits", ["float", "float16", "bfloat16"])
def test_sample_is_compiled_as_a_plugin_layer(tmp_path: Path, logits: str) -> None:
    model = sample_model(tmp_path, logits=logits)
    profile = {"logits": VERIFY_PROFILE["logits"]}
    found = fresh("build", model=model, profile=profile, capabilities=CAPABILITIES)
    assert found["layers"] == [PLUGIN]
    assert found["outputs"] == {"sample": ["INT64", -1, -1]}
    assert SAMPLE.digest in found["plan"]


def test_fixed_sizes_reach_the_outputs(tmp_path: Path) -> None:
    """An output whose size came from the wrong axis would show here."""
    (tmp_path / "v").mkdir()
    (tmp_path / "s").mkdir()
    found = fresh("build", model=verify_model(tmp_path / "v", dims=("3", "5", "4")))
    assert found["outputs"] == {"accepted": ["INT64", 3], "next": ["INT64", 3]}
    found = fresh("build", model=sample_model(tmp_path / "s", dims="3, 5"))
    assert found["outputs"] == {"sample": ["INT64", 3, 5]}


def test_registering_twice_is_harmless(tmp_path: Path) -> None:
    found = fresh("build", model=verify_model(tmp_path), num_registrations=3)
    assert found["missing before"] == list(plugins.NAMES)
    assert found["missing"] == []
    assert found["layers"] == [PLUGIN]


def test_without_registration_the_function_is_inlined_and_missing_says_so(tmp_path: Path) -> None:
    """Nothing fails: only `missing`, or the layer list, tells."""
    found = fresh("build", model=verify_model(tmp_path), num_registrations=0)
    assert found["parsed"]
    assert found["missing"] == ["ssd::Verify@1", "ssd::Sample@1"]
    assert PLUGIN not in found["layers"]
    assert len(found["layers"]) > 1


@pytest.mark.parametrize(
    "attributes",
    [
        '<plugin_namespace = "sdd", plugin_version = "1">',
        '<plugin_namespace = "ssd", plugin_version = "2">',
        "",
    ],
)
def test_a_node_that_names_another_plugin_is_not_ours(tmp_path: Path, attributes: str) -> None:
    """TensorRT inlines the function without a word, so the layer's type must be looked at."""
    found = fresh("build", model=verify_model(tmp_path, attributes=attributes))
    assert found["parsed"]
    assert PLUGIN not in found["layers"]


@pytest.mark.parametrize(
    ("types", "reason"),
    [
        ({"ids": "int32"}, "ssd::Verify@1: drafts must be int64, found int32"),
        ({"logits": "int32"}, "logits must be float32 or float16 or bfloat16, found int32"),
    ],
)
def test_other_types_are_refused_with_the_reason(
    tmp_path: Path, types: dict[str, str], reason: str
) -> None:
    found = fresh("build", model=verify_model(tmp_path, function=None, **types))
    assert not found["parsed"]
    assert reason in found["refusals"][0]


def test_fields_come_back_through_the_creator() -> None:
    """An engine of another meaning of the operator must not load as if it were of this one."""
    found = fresh("restore")
    assert found["fields"] == {"meaning": VERIFY.digest}
    assert found["restored"] == "Verify"
    assert found["refusal"].startswith("BundleIncompatibleError: the engine was built with another")
    assert "python -m export build" in found["refusal"]


def test_an_enqueue_reaches_the_launcher_with_addresses_types_and_shapes() -> None:
    [launch] = fresh("enqueue")["launches"]
    assert launch == [
        "ssd::Sample@1",
        [0x10, "bfloat16", [2, 5, 100]],
        [0x20, "int64", [100]],
        [0x30, "int64", [2, 5]],
        7,
        0x40,
    ]


@pytest.mark.gpu
def test_a_plan_needs_its_layers_registered(tmp_path: Path) -> None:
    """TensorRT returns no engine and no exception, which is why `plugins.require` is asked."""
    built = fresh(
        "build",
        model=verify_model(tmp_path),
        profile=VERIFY_PROFILE,
        capabilities=["SM80", "SM86", *CAPABILITIES],
    )
    plan = tmp_path / "model.plan"
    plan.write_bytes(built["plan"].encode("latin-1"))
    assert not fresh("read", plan=str(plan), registered=False)["read"]
    found = fresh("read", plan=str(plan), registered=True)
    assert found["read"] is found["GPU is supported"]
