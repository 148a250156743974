"""What a build says about its quantised weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import export.check.rounding
from engines.bundle import Bundle, open_bundle
from engines.errors import BackendError, BundleCorruptError
from engines.manifest import DRAFT, TARGET, dump, load_engine
from export.build.build import BuildResult, build
from export.build.options import BuildOptions
from export.check.fidelity import kl_divergence
from export.check.rounding import ANSWER_TOKENS, measure_rounding
from export.check.scoring import Scoring
from export.check.verify import PROMPTS, prompt_ids
from export.cli.inspect import text as inspected
from runtime.llm import LLM, score
from tests.helpers.checkpoints import BOS_ID, make_draft, make_llama


class Recorder:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def step(self, what: str, done: int, total: int) -> None:
        pass


def built(
    folder: Path, precision: str, recorder: Recorder | None = None, **options: Any
) -> BuildResult:
    sizes = {"hidden": 64, "intermediate": 128}
    if not (folder / "t").exists():
        make_llama(folder / "t", seed=3, dtype="BF16", **sizes)
        make_draft(folder / "d", **sizes)
    chosen = BuildOptions(
        str(folder / "t"),
        str(folder / "d"),
        folder / precision / "b",
        precision=precision,
        max_len=160,
        max_branches=4,
    )
    return build(chosen, reporter=recorder, measure=measure_rounding, **options)


def test_the_figures_are_those_of_both_engines_on_the_targets_own_answers(tmp_path: Path) -> None:
    """By hand: answers of an fp32 bundle, read by it and by the int4 one."""
    recorder = Recorder()
    bundle = built(tmp_path, "int4", recorder).bundle
    exact = built(tmp_path, "fp32").bundle
    expected = by_hand(exact, bundle)
    for engine in bundle.engines:
        assert engine.fidelity is not None
        figures = (engine.fidelity.agreement, engine.fidelity.mean_kl)
        assert figures == pytest.approx(expected[engine.role], rel=1e-6)
        assert 0 < engine.fidelity.mean_kl < 1
        agreement = f"{engine.fidelity.agreement:.1%} of {engine.fidelity.num_positions} positions"
        (line,) = [each for each in recorder.lines if each.startswith(f"{engine.role}: same")]
        assert agreement in line
        assert agreement in inspected(bundle)


def by_hand(exact: Bundle, rounded: Bundle) -> dict[str, tuple[float, float]]:
    texts = []
    with LLM.open(exact.path, mode="ar") as llm:
        for ids in prompt_ids(exact):
            start = ids[: 159 - ANSWER_TOKENS]
            answer = llm.generate(start, max_tokens=min(ANSWER_TOKENS, 159 - len(start)))
            texts.append((len(start), [*start, *answer.token_ids]))
    found = {}
    for role in (TARGET, DRAFT):
        left, right = (
            np.concatenate([score(each.path, role, ids)[n - 1 :] for n, ids in texts])
            for each in (exact, rounded)
        )
        same = (left.argmax(axis=1) == right.argmax(axis=1)).mean()
        found[role] = (float(same), float(kl_divergence(left, right).mean()))
    return found


def test_eight_bits_are_closer_than_four_and_fp32_is_not_measured(tmp_path: Path) -> None:
    figures = [built(tmp_path, name).bundle.target.fidelity for name in ("int8", "int4", "fp32")]
    assert figures[2] is None
    assert figures[0] is not None
    assert figures[1] is not None
    assert figures[0].mean_kl < 0.1 * figures[1].mean_kl
    assert figures[0].agreement > figures[1].agreement


def test_figures_outlive_the_build_and_its_twin_does_not(tmp_path: Path) -> None:
    first = built(tmp_path, "int8")
    again = built(tmp_path, "int8")
    assert again.cache_hit
    assert again.bundle.target.fidelity == first.bundle.target.fidelity is not None
    assert sorted(each.name for each in (tmp_path / "int8").iterdir()) == ["b"]
    open_bundle(tmp_path / "int8" / "b", hashes="all")


def test_a_model_that_would_take_minutes_is_left_out_with_the_command_that_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export.check.rounding, "MOST_PARAMETERS", 1000)
    recorder = Recorder()
    assert built(tmp_path, "int8", recorder).bundle.target.fidelity is None
    (line,) = [each for each in recorder.lines if "fidelity" in each]
    assert line.startswith("fidelity was not measured: a float32 twin of ")
    assert line.endswith("; python -m export verify BUNDLE measures it")


def test_a_twin_that_does_not_fit_the_disk_is_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export.check.rounding, "free_disk", lambda _folder: 5000)
    recorder = Recorder()
    assert built(tmp_path, "int8", recorder).bundle.target.fidelity is None
    assert any("the disk has 5.0 kB free" in line for line in recorder.lines)


def test_an_engine_that_cannot_run_here_is_still_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_arguments: object) -> None:
        raise BackendError("no such kernel")

    monkeypatch.setattr(export.check.rounding, "_logits", fails)
    recorder = Recorder()
    assert built(tmp_path, "int8", recorder).bundle.target.fidelity is None
    assert "fidelity was not measured: no such kernel" in recorder.lines


def test_damaged_logits_do_not_look_like_perfect_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A divergence that is not a number came out as 0."""

    @contextmanager
    def damaged(_bundle: Bundle, _role: str) -> Iterator[Scoring]:
        yield Scoring("engine", lambda *_: np.full((160, 320), np.nan, np.float32))

    monkeypatch.setattr(export.check.rounding, "scoring", damaged)
    recorder = Recorder()
    assert built(tmp_path, "int8", recorder).bundle.target.fidelity is None
    (line,) = [each for each in recorder.lines if "fidelity" in each]
    assert line.endswith("the target in fp32 gives logits that are NaN or infinite")


def test_a_bf16_checkpoint_says_what_it_is_computed_in(tmp_path: Path) -> None:
    """ONNX Runtime's CPU provider has no bfloat16 arithmetic: sessions of such graphs fail."""
    recorder = Recorder()
    bundle = built(tmp_path, "fp32", recorder).bundle
    assert "target: stored as BF16; computed in float32" in recorder.lines
    assert bundle.target.source.stored == ("BF16",)
    assert bundle.target.kv.dtype.value == "float32"
    assert "stored as BF16, computed in float32" in inspected(bundle)
    with LLM.open(bundle.path, mode="ar") as llm:
        assert llm.generate([5, 6], max_tokens=4).token_ids


@pytest.mark.parametrize("change", [{"agreement": 1.5}, {"mean_kl": -1.0}, {"num_positions": 0}])
def test_figures_that_cannot_be_are_corrupt(tmp_path: Path, change: dict[str, float]) -> None:
    document = json.loads(dump(built(tmp_path, "int8").bundle.target))
    document["fidelity"].update(change)
    with pytest.raises(BundleCorruptError, match=next(iter(change))):
        load_engine(json.dumps(document), "m")


def test_a_chat_template_that_fails_does_not_hide_the_figures(tmp_path: Path) -> None:
    """It may want tools, or roles in another order; the prompts do without it then."""
    make_llama(tmp_path / "t", seed=3, hidden=64, intermediate=128)
    make_draft(tmp_path / "d", hidden=64, intermediate=128)
    (tmp_path / "t/chat_template.jinja").write_text("{{ raise_exception('only with tools') }}")
    result = built(tmp_path, "int8")
    assert result.bundle.target.fidelity is not None
    assert all(prompt_ids(result.bundle))


def test_a_model_without_a_template_reads_its_own_beginning_of_text(tmp_path: Path) -> None:
    """Base models of Gemma and Llama 3 are at a loss without it: figures were of no real text."""
    from tokenizers import Tokenizer, processors

    folder = make_llama(tmp_path / "t", chat_template=False)
    path = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", BOS_ID)]
    )
    tokenizer.save(str(path))
    bundle = build(
        BuildOptions(str(folder), out=tmp_path / "b", precision="fp32", max_len=160)
    ).bundle
    with LLM.open(bundle.path, mode="ar") as llm:
        assert prompt_ids(bundle) == [llm.encode(text) for text in PROMPTS]
    assert {ids[0] for ids in prompt_ids(bundle)} == {BOS_ID}
