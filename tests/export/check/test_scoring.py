from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import export.check.runners
import export.check.scoring
from engines.errors import BackendError
from engines.manifest import TARGET
from export.check.engine import OnnxEngine, Text, choose
from export.check.runners import onnx_runner, without_chatter
from export.check.scoring import scoring
from export.check.verify import verify
from export.checkpoint.api import open_checkpoint
from export.cli.verify import text as words_of
from export.tensorrt.capabilities import LocalGpu
from runtime.llm import score
from tests.helpers.compiled_bundle import compiled_bundle
from tests.helpers.tiny_bundle import tiny_bundle

pytestmark = pytest.mark.polygraphy
IDS = np.random.default_rng(5).integers(0, 320, 90).tolist()  # more than one prompt chunk


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setattr(export.check.runners, "local_gpu", lambda: None)


def test_a_text_read_in_parts_is_read_as_the_runtime_reads_it() -> None:
    """Caches must carry over from call to call, padding must not be attended."""
    bundle = tiny_bundle()
    expected = score(bundle.path, TARGET, IDS)
    with without_chatter():
        engine = OnnxEngine(onnx_runner(bundle.model_path(TARGET), 1), bundle.target)
        with closing(engine):
            whole = Text(engine).read(IDS)
            text = Text(engine)
            parts = [text.read(IDS[:70]), text.read(IDS[70:71]), text.read(IDS[71:])]
    np.testing.assert_allclose(whole, expected, atol=1e-4)
    np.testing.assert_allclose(np.concatenate(parts), expected, atol=1e-4)


def test_greedy_choices_know_how_sure_they_are() -> None:
    choice = choose(np.array([0.5, 3.0, 2.75, -1.0], np.float32))
    assert (choice.token, choice.margin) == (1, 0.25)


def test_an_engine_of_onnx_runtime_answers_for_itself() -> None:
    with scoring(tiny_bundle()) as chosen:
        assert (chosen.engine, chosen.notes) == ("engine", ())
        assert chosen.score is score


@pytest.mark.rtx
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("fp16", 0.5)])
def test_the_graph_stands_in_for_a_plan_that_cannot_run(precision: str, tolerance: float) -> None:
    bundle = compiled_bundle(precision)
    expected = score(tiny_bundle().path, TARGET, IDS)  # the same checkpoint
    with scoring(bundle) as chosen:
        found = chosen.score(bundle.path, TARGET, IDS)
    assert chosen.engine == "graph"
    [note] = chosen.notes
    assert "the plan was not run" in note
    assert "needs an NVIDIA GPU" in note
    assert "\n" not in note
    np.testing.assert_allclose(found, expected, atol=tolerance)


@pytest.mark.rtx
def test_what_nothing_here_can_run_is_one_line() -> None:
    words = "cannot be checked on this machine: ONNX Runtime does not compute in bfloat16, and"
    with pytest.raises(BackendError, match=words), scoring(compiled_bundle("bf16")):
        pass


@pytest.mark.rtx
def test_a_bundle_without_its_graph_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.bundle.MODEL_FILE", "no.onnx")
    words = r"built with --no-onnx and has no graph, and running its .* needs an NVIDIA GPU"
    with pytest.raises(BackendError, match=words), scoring(compiled_bundle("fp16")):
        pass


@pytest.mark.rtx
def test_a_gpu_that_the_plan_was_not_compiled_for_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(export.check.runners, "local_gpu", lambda: LocalGpu("H200", "9.0"))
    with scoring(compiled_bundle("fp16")) as chosen:
        [note] = chosen.notes
    assert "compiled for compute capability 8.9, and this machine's H200 has 9.0" in note


def checkpoint_of(bundle_path: Path) -> Path:
    return bundle_path.parent / "target"


@pytest.mark.torch
@pytest.mark.rtx
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_verify_checks_the_graph_and_says_what_it_did_not_check(precision: str) -> None:
    bundle = compiled_bundle(precision)
    result = verify(bundle.path, open_checkpoint(checkpoint_of(bundle.path)))
    assert result.passed, result.verdict
    assert (result.engine, result.parity) == ("graph", None)
    printed = words_of(result)
    assert printed.startswith("note: the plan was not run: ")
    assert f"{precision} graph against the fp32 checkpoint" in printed


@pytest.mark.torch
@pytest.mark.rtx
def test_a_wrong_graph_does_not_pass() -> None:
    bundle = compiled_bundle("fp16")
    other = compiled_bundle("fp16", seed=4)
    assert not verify(bundle.path, open_checkpoint(checkpoint_of(other.path))).passed


@pytest.mark.gpu
@pytest.mark.torch
@pytest.mark.rtx
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8"])
def test_verify_runs_the_plan_on_the_gpu(precision: str) -> None:
    bundle = compiled_bundle(precision)
    result = verify(bundle.path, open_checkpoint(checkpoint_of(bundle.path)))
    assert result.passed, result.verdict
    assert result.engine == "plan"
    assert result.parity is not None
