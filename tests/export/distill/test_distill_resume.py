"""Stopping a run and going on with it; evaluation, refused prompts and the card on the way."""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from engines.errors import UsageError
from export.checkpoint.api import open_checkpoint
from export.distill import cli, overlap, pipeline, write
from export.distill.chat import frame_of
from export.distill.checkpoint import RunFolder
from export.distill.corpus import Sample
from export.distill.initial import initial_draft
from export.distill.options import Options
from export.distill.prompts import read_prompts, read_questions
from export.distill.text import load_target
from export.distill.train import Budget, Labels, Trainer
from export.distill.work import Work
from tests.export.distill.sample_files import write_npz
from tests.helpers.checkpoints import make_llama


def some_samples(num: int = 60) -> list[Sample]:
    rng = np.random.default_rng(0)
    return [Sample(rng.integers(3, 300, 24), 5, 0.0) for _ in range(num)]


def run(*options: object) -> int:
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    return cli.run(parser.parse_args([str(option) for option in options]))


def trained(folder: Path) -> dict[str, np.ndarray]:
    checkpoint = open_checkpoint(folder)
    return {name: checkpoint.tensor(name) for name in checkpoint.tensor_names()}


@pytest.mark.torch
def test_a_second_run_in_one_folder_is_refused(tmp_path: Path) -> None:
    """Two runs would write shards of one number, and train on each other's halves."""
    target = make_llama(tmp_path / "target", layers=3)
    data = write_npz(tmp_path / "text.npz", some_samples())
    base = ("--target", target, "--data", data, "--passes", 1, "--vocab", 160, "--quiet")
    mine = ("--work", tmp_path / "work")
    other = Options(target="t", out=tmp_path / "other", work=tmp_path / "work")
    with Work(other, open_checkpoint(target).fingerprint()).alone():
        with pytest.raises(UsageError, match=r"another run works in .*work; wait"):
            run(*base, *mine, "--out", tmp_path / "draft")
        assert not (tmp_path / "draft").exists()
    assert run(*base, *mine, "--out", tmp_path / "draft") == 0


@pytest.mark.torch
def test_a_draft_that_was_written_meanwhile_is_seen_before_training(tmp_path: Path) -> None:
    """Of two runs for one draft the second waited for nothing, and trained for nothing."""
    (tmp_path / "out").mkdir()
    work = Work(Options(target="t", out=tmp_path / "out", work=tmp_path / "work"), "0")
    with pytest.raises(UsageError, match="exists already"), work.alone():
        pytest.fail("the folder was given")


@pytest.mark.torch
@pytest.mark.parametrize(
    ("other", "told"),
    [
        (("--greedy", "1"), "has --greedy 0.5, this command 1.0"),
        (("--answer-tokens", "3"), "has --answer-tokens 12, this command 3"),
        (("--prompts", "B"), "has --prompts of SHA-256 .*, this command of SHA-256"),
    ],
)
def test_text_is_written_to_its_end_as_it_was_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: tuple[str, str], told: str
) -> None:
    """The card told of the last command, whatever most of the text was written by."""
    target = make_llama(tmp_path / "target", layers=3)
    for name in "AB":
        (tmp_path / name).write_text(f"hello {name}\n")
    base = ("--target", target, "--out", tmp_path / "o", "--write-minutes", 1, "--quiet")
    own = ("--prompts", tmp_path / "A", "--answer-tokens", 12, "--greedy", 0.5)
    option, value = other
    changed = [*own, option, tmp_path / value if value == "B" else value]

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(write, "write_text", stop)
    for options in (own, own):  # the same again goes on
        with pytest.raises(KeyboardInterrupt):
            run(*base, *options)
    with pytest.raises(UsageError, match=told):
        run(*base, *changed, "--resume")


@pytest.mark.torch
def test_a_run_that_was_stopped_ends_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights, optimiser, place in the data and rate must all come back."""
    monkeypatch.setattr(pipeline, "NUM_CHECKS", 2)
    target = make_llama(tmp_path / "target", layers=3)
    data = write_npz(tmp_path / "text.npz", some_samples())
    base = ("--target", target, "--data", data, "--passes", 3, "--vocab", 160, "--work")
    assert run(*base, tmp_path / "w1", "--out", tmp_path / "whole", "--quiet") == 0

    step = Trainer._step

    def stop_at_twenty(self: Trainer, batch: object, share: float) -> None:
        step(self, batch, share)  # type: ignore[arg-type]
        if self.progress.num_steps == 20:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Trainer, "_step", stop_at_twenty)
    parts = (*base, tmp_path / "w2", "--out", tmp_path / "parts", "--quiet")
    with pytest.raises(KeyboardInterrupt):
        run(*parts)
    assert "--resume" in capsys.readouterr().err
    assert not (tmp_path / "parts").exists()
    with pytest.raises(UsageError, match="--resume"):
        run(*parts)
    with pytest.raises(UsageError, match="has vocabulary 160, this command 150"):
        run(*parts, "--resume", "--vocab", 150)
    monkeypatch.setattr(Trainer, "_step", step)
    assert run(*parts, "--resume") == 0
    for name, tensor in trained(tmp_path / "whole").items():
        np.testing.assert_array_equal(tensor, trained(tmp_path / "parts")[name], err_msg=name)
    assert not (tmp_path / "w2" / "runs" / "parts").exists()
    assert list((tmp_path / "w2" / "text").glob("read-*.npy"))


@pytest.mark.torch
def test_training_ends_when_held_out_acceptance_does_not_rise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the best weights are written, not the last. Not in the first half: at a high rate figures
    stand still, and a draft that goes on from an earlier one begins by losing some of its own."""
    alphas = iter([0.1, 0.3, *[0.2] * 99])
    real, seen = pipeline.measure, []

    def measure(draft: object, samples: object, ids: object) -> object:
        figures = real(draft, samples, ids)  # type: ignore[arg-type]
        value = next(alphas)
        seen.append(draft.weights["lm_head.weight"].detach().clone())  # type: ignore[attr-defined]
        return type(figures)(**{
            name: value if name == "alpha" else getattr(figures, name)
            for name in figures.__dataclass_fields__
        })  # fmt: skip

    monkeypatch.setattr(pipeline, "measure", measure)
    target = make_llama(tmp_path / "target")
    data = write_npz(tmp_path / "text.npz", some_samples())
    run("--target", target, "--data", data, "--passes", 4, "--vocab", 160, "--labels", "hard",
        "--out", tmp_path / "draft", "--json", "--quiet")  # fmt: skip
    assert json.loads(capsys.readouterr().out)["stopped_early"]
    early = int(pipeline.NUM_CHECKS * pipeline.PATIENT_SHARE)
    assert len(seen) == early + pipeline.PATIENCE + 1  # the last one measures what is written
    head = trained(tmp_path / "draft")["lm_head.weight"]
    np.testing.assert_allclose(head, seen[1].numpy(), atol=2e-3)
    assert "stopped early" in (tmp_path / "draft" / "README.md").read_text()


@pytest.mark.torch
def test_the_command_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prompts of the user's, text of the target's, refusal, evaluation, card; work is reused."""
    monkeypatch.setattr("export.distill.write.NUM_ROWS", {"cpu": 8})
    monkeypatch.setattr("export.distill.author.QUESTION_TOKENS", 6)
    monkeypatch.setattr("export.distill.author.ANSWER_TOKENS", 12)
    monkeypatch.setattr("export.distill.author.ARTICLE_TOKENS", 12)
    target = make_llama(tmp_path / "target")
    known = "one two three four five six seven eight nine ten"
    (tmp_path / "mine.txt").write_text(f"hello\n{known}\n")
    lines = [
        {"category": "math", "turns": [known]},
        {"category": "r|ag", "turns": ["b", "c"]},
        {"category": "long", "turns": ["word " * 500]},
    ]
    questions = tmp_path / "bench.jsonl"
    questions.write_text("\n".join(map(json.dumps, lines)))
    base = ("--target", target, "--work", tmp_path / "w", "--layers", 1, "--quiet", "--json",
            "--evaluate", questions, "--passes", 1)  # fmt: skip
    run(*base, "--out", tmp_path / "a", "--write-minutes", 0.03, "--prompts", tmp_path / "mine.txt")
    out, err = capsys.readouterr()
    assert "bench.jsonl: left out 1 of 3 questions, which leave no room for 64 tokens" in err
    result = json.loads(out)
    assert result["num_refused"] >= 1
    assert list(result["evaluated"]) == ["math", "r|ag", "all"]
    assert all(1.0 <= each["tokens_per_round"] <= 5.0 for each in result["evaluated"].values())
    card = (tmp_path / "a" / "README.md").read_text()
    for part in (
        "self-written",
        "bench.jsonl",
        "| math | 1 |",
        "| r&#124;ag | 1 |",
        "--prompts mine.txt",
        "Licence",
    ):
        assert part in card
    assert str(tmp_path) not in card

    run(*base, "--out", tmp_path / "b", "--write-minutes", 0)  # the text is there already
    again = json.loads(capsys.readouterr().out)
    assert again["num_refused"] == result["num_refused"]
    with pytest.raises(UsageError, match="another target"):
        run("--target", make_llama(tmp_path / "other", seed=9), *base[2:], "--out", tmp_path / "c")


def test_shared_runs_of_thirteen_tokens_are_refused() -> None:
    rng = np.random.default_rng(1)
    prompt = rng.integers(0, 300, 40)
    plain = Sample(rng.integers(0, 300, 60), 5, 0.0)
    twelve = Sample(np.concatenate([[1], prompt[7:19], [301]]), 1, 0.0)
    thirteen = Sample(np.concatenate([[1], prompt[7:20], [301]]), 1, 0.0)
    kept, refused = overlap.without([plain, twelve, thirteen], [prompt.tolist(), [5] * 3])
    assert ([id(each) for each in kept], refused) == ([id(plain), id(twelve)], 1)
    assert overlap.without([plain], []) == ([plain], 0)


def test_a_short_prompt_is_refused_where_it_is_the_whole_question() -> None:
    """It has no run of thirteen tokens, and still is not to be learned."""
    asking, mentioning = Sample(np.array([1, 7, 8, 2, 5]), 4, 0.0), Sample(np.arange(20), 4, 0.0)
    kept, refused = overlap.without_prompts([asking, mentioning], [[1, 7, 8, 2], [0, 1, 2]])
    assert ([id(each) for each in kept], refused) == ([id(mentioning)], 1)


def test_a_folder_that_holds_other_files_is_no_working_folder(tmp_path: Path) -> None:
    """OUT.work is removed at the end, with all that is in it."""
    (tmp_path / "d.work").mkdir()
    (tmp_path / "d.work" / "thesis.tex").write_text("years of work")
    options = Options(target="t", out=tmp_path / "d")
    with pytest.raises(UsageError, match="holds other files"):
        Work(options, "0")
    assert os.listdir(tmp_path / "d.work") == ["thesis.tex"]
    ours = Work(Options(target="t", out=tmp_path / "e"), "0")
    Work(Options(target="t", out=tmp_path / "e"), "0").finish()  # its own, once made
    assert not ours.path.exists()


@pytest.mark.torch
@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04 cut"])
def test_damaged_checkpoints_are_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    folder = RunFolder(tmp_path)
    folder.start({"seed": 0})
    (tmp_path / "state.pt").write_bytes(content)
    (tmp_path / "best.safetensors").write_bytes(content)
    target = load_target(open_checkpoint(make_llama(tmp_path / "m")))
    draft = initial_draft(target, (0,), np.arange(160))
    trainer = Trainer(
        draft, some_samples(4), Labels(np.arange(160), 320, None),
        seed=0, budget=Budget(passes=1), dtype=target.head.dtype,
    )  # fmt: skip
    for read in (lambda: folder.load(trainer), lambda: folder.load_best(draft.weights)):
        with pytest.raises(UsageError, match=r"remove .* to start anew") as caught:
            read()
        assert "\n" not in str(caught.value)
    (tmp_path / "run.json").write_text("[1]")
    with pytest.raises(UsageError, match="has seed None, this command 0"):
        folder.check({"seed": 0})


@pytest.mark.torch
def test_a_prompt_is_refused_inside_its_chat_template(tmp_path: Path) -> None:
    """Merges at the seams must not hide it."""
    frame = frame_of(open_checkpoint(make_llama(tmp_path / "m")))
    text = "the quick brown fox jumps over the lazy dog and on"
    ids = np.array(frame.encode(frame.before + text + frame.after))
    kept, refused = overlap.without([Sample(ids, len(ids) - 1, 0.0)], [frame.encode(text)])
    assert (kept, refused) == ([], 1)


@pytest.mark.parametrize("category", ["all", "two\nlines"])
def test_a_category_has_a_name_of_its_own(tmp_path: Path, category: str) -> None:
    """Of the figures of all; and a line of the table."""
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"category": category, "turns": ["a"]}))
    with pytest.raises(UsageError, match=r"p\.jsonl:1: a category '(all|two\\nlines)'"):
        read_questions(path)


def test_prompt_files(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("one\n\n two \n")
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}\n{"turns": ["b", "c"]}\n')
    assert read_prompts(tmp_path / "p.txt") == ["one", "two"]
    assert read_prompts(tmp_path / "p.jsonl") == ["a", "b"]


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"turns": []}', '{"turns": [1]}', '{"category": "c", "turns": [" "]}', "\xff"],
)
def test_bad_files_of_prompts_are_refused_in_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(content.encode("latin-1"))
    for read in (read_prompts, read_questions):
        with pytest.raises(UsageError, match=r"p\.jsonl") as caught:
            read(path)
        assert "\n" not in str(caught.value)
