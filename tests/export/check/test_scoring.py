from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

import export.check.runners
import export.check.scoring
from engines.bundle import Bundle
from engines.errors import BackendError
from engines.manifest import DRAFT, TARGET
from export.check.engine import OnnxEngine, Text, choose
from export.check.runners import onnx_runner, without_chatter
from export.check.scoring import scoring
from export.check.verify import verify
from export.checkpoint.api import Checkpoint, open_checkpoint
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
    bundle = tiny_bundle()
    with scoring(bundle, TARGET) as chosen:
        assert (chosen.engine, chosen.notes) == ("engine", ())
        found = chosen.score(bundle.path, TARGET, IDS)
    np.testing.assert_array_equal(found, score(bundle.path, TARGET, IDS))


@pytest.mark.rtx
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("fp16", 0.5)])
def test_the_graph_stands_in_for_a_plan_that_cannot_run(precision: str, tolerance: float) -> None:
    bundle = compiled_bundle(precision)
    expected = score(tiny_bundle().path, TARGET, IDS)  # the same checkpoint
    with scoring(bundle, TARGET) as chosen:
        found = chosen.score(bundle.path, TARGET, IDS)
    assert chosen.engine == "graph"
    [note] = chosen.notes
    assert "the target plan was not run" in note
    assert "needs an NVIDIA GPU" in note
    assert "\n" not in note
    np.testing.assert_allclose(found, expected, atol=tolerance)


@pytest.mark.rtx
def test_what_nothing_here_can_run_is_one_line() -> None:
    words = "cannot be checked on this machine: ONNX Runtime does not compute in bfloat16, and"
    with pytest.raises(BackendError, match=words), scoring(compiled_bundle("bf16"), TARGET):
        pass


@pytest.mark.rtx
def test_a_bundle_without_its_graph_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.bundle.MODEL_FILE", "no.onnx")
    words = r"built with --no-onnx and has no graph, and running its .* needs an NVIDIA GPU"
    with pytest.raises(BackendError, match=words), scoring(compiled_bundle("fp16"), TARGET):
        pass


@pytest.mark.rtx
def test_a_gpu_that_the_plan_was_not_compiled_for_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(export.check.runners, "local_gpu", lambda: LocalGpu("H200", "9.0"))
    with scoring(compiled_bundle("fp16"), TARGET) as chosen:
        [note] = chosen.notes
    assert "compiled for compute capability 8.9, and this machine's H200 has 9.0" in note


def checkpoints_of(bundle: Bundle) -> dict[str, Checkpoint]:
    return {role: open_checkpoint(bundle.path.parent / role) for role in (TARGET, DRAFT)}


@pytest.mark.torch
@pytest.mark.rtx
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_verify_checks_the_graphs_and_says_what_it_did_not_check(precision: str) -> None:
    bundle = compiled_bundle(precision)
    result = verify(bundle.path, **checkpoints_of(bundle))
    assert result.passed, result.verdict
    assert result.parity is None
    assert {role: check.engine for role, check in result.engines.items()} == {
        TARGET: "graph",
        DRAFT: "graph",
    }
    printed = words_of(result)
    for role in (TARGET, DRAFT):
        assert f"note: the {role} plan was not run: " in printed
        assert f"\n{role}: {precision} graph against the fp32 checkpoint" in printed


@pytest.mark.torch
@pytest.mark.rtx
def test_a_wrong_graph_does_not_pass() -> None:
    bundle = compiled_bundle("fp16")
    other = compiled_bundle("fp16", seed=4)
    assert not verify(bundle.path, checkpoints_of(other)[TARGET]).passed


@pytest.mark.gpu
@pytest.mark.torch
@pytest.mark.rtx
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8"])
def test_verify_runs_the_plans_on_the_gpu(precision: str) -> None:
    bundle = compiled_bundle(precision)
    result = verify(bundle.path, **checkpoints_of(bundle))
    assert result.passed, result.verdict
    assert {check.engine for check in result.engines.values()} == {"plan"}
    assert result.parity is not None
