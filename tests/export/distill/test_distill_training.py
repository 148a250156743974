"""From a tiny target to a draft on disk."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pytest

from engines.errors import BackendError, SsdError
from export.checkpoint.api import open_checkpoint
from export.checkpoint.spec import ModelSpec
from export.distill import cli
from export.distill.corpus import Sample, collate
from export.distill.facts import Data, Facts, Origin
from export.distill.initial import initial_draft, narrowed, source_layers
from export.distill.measure import Figures
from export.distill.stop import Stop
from export.distill.text import load_target
from export.distill.train import Budget, Labels, Progress, Trainer, schedule, worth_learning
from tests.export.distill.sample_files import write_npz
from tests.helpers.checkpoints import make_llama, make_qwen3

DRAFT_IDS = np.append(np.arange(0, 318, 2), 319)  # [160]


def pattern_samples(num: int = 60) -> list[Sample]:
    """Answers that count on by two from the prompt's last id: learnable within a few steps."""
    rng = np.random.default_rng(0)
    return [
        Sample(np.concatenate([rng.integers(3, 300, 5), start + 2 * np.arange(20)]), 5, 0.0)
        for start in rng.integers(20, 120, num) * 2
    ]


def some_facts(spec: ModelSpec) -> Facts:
    return Facts(
        origin=Origin("m", "0"),
        data=Data(("text.npz",), 1, 1, 1, 1),
        layers=(0, 1),
        target_spec=spec,
        soft=True,
        progress=Progress(),
        is_early=False,
        figures=Figures(1, 1, True, 0.0, (0.0,) * 16, {2: 1.0}),
        command="python -m export distill",
    )


def parse(*options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    return parser.parse_args(options)


@pytest.mark.torch
def test_hard_loss_counts_answer_positions_only(tmp_path: Path) -> None:
    """Fails if a prompt token, padding or an id outside the draft's vocabulary is trained on."""
    import torch

    target = load_target(open_checkpoint(make_llama(tmp_path / "m", layers=3)))
    draft = initial_draft(target, [0, 2], DRAFT_IDS)
    samples = [
        Sample(np.array([7, 10, 12, 14, 16, 18]), 3, 0.0),
        Sample(np.array([7, 20, 33, 22]), 1, 0.0),  # 33 is odd: the draft cannot say it
    ]
    batch = collate(samples)
    with torch.no_grad():
        found = Labels(DRAFT_IDS, 320, None).loss(draft, batch)
        scores = draft.logits(draft.hidden(torch.from_numpy(batch.tokens))).log_softmax(-1)
    wanted = [(0, 2, 14), (0, 3, 16), (0, 4, 18), (1, 0, 20), (1, 2, 22)]
    expected = -np.mean([float(scores[row, at, label // 2]) for row, at, label in wanted])
    assert float(found) == pytest.approx(expected, rel=1e-5)
    unspeakable = collate([Sample(np.array([4, 33, 35]), 1, 0.0)])
    assert Labels(DRAFT_IDS, 320, None).loss(draft, unspeakable) is None


@pytest.mark.torch
def test_soft_labels_are_the_targets_law_over_the_drafts_ids(tmp_path: Path) -> None:
    """The stored states must give what the target says at that very position."""
    import torch

    target = load_target(open_checkpoint(make_llama(tmp_path / "m", layers=3)))
    draft = initial_draft(target, [0, 2], DRAFT_IDS)
    rows = [np.array([7, 10, 12, 14]), np.array([7, 20])]
    with torch.no_grad():
        states = [target.hidden(torch.from_numpy(row)[None])[0].half().numpy() for row in rows]
        samples = [Sample(row, 1, 0.0, each) for row, each in zip(rows, states, strict=True)]
        head = target.head[torch.from_numpy(DRAFT_IDS)]
        found = float(Labels(DRAFT_IDS, 320, head).loss(draft, collate(samples)))
        losses = []
        for row in rows:
            law = target.logits(target.hidden(torch.from_numpy(row)[None]))[0][:, DRAFT_IDS]
            scores = draft.logits(draft.hidden(torch.from_numpy(row)[None]))[0]
            losses += (-(law.softmax(-1) * scores.log_softmax(-1)).sum(-1)).tolist()
    assert found == pytest.approx(np.mean(losses), rel=1e-3)


def test_a_long_prompt_counts_no_more_than_its_answer() -> None:
    """A page before a line of answer: the draft would spend its training on text that it is never
    asked to guess."""
    states = np.zeros((49, 4), np.float16)  # not known at the last token
    batch = collate(
        [
            Sample(np.arange(50), 40, 0.0, states),
            Sample(np.arange(12), 2, 0.0, states[:11]),  # its prompt is shorter than its answer
        ]
    )
    chosen = batch.known[worth_learning(batch)].tolist()
    answers = [*range(39, 49), *range(51, 61)]
    assert set(answers) <= set(chosen)
    prompts = sorted(set(chosen) - set(answers))
    assert len(prompts) == len(chosen) - len(answers)
    assert 14 <= len(prompts) <= 20
    assert max(np.diff([-1, *prompts])) <= 3  # from all of the page
    unanswered = collate([Sample(np.arange(12), 12, 0.0, states[:11])])
    assert worth_learning(unanswered).tolist() == []


@pytest.mark.torch
def test_training_lowers_the_loss_and_leaves_the_target_alone(tmp_path: Path) -> None:
    import torch

    target = load_target(open_checkpoint(make_llama(tmp_path / "m", layers=3)))
    before = {name: tensor.clone() for name, tensor in target.weights.items()}
    draft = initial_draft(target, [0, 2], DRAFT_IDS)
    samples = pattern_samples()
    labels = Labels(DRAFT_IDS, 320, None)

    def loss() -> float:
        with torch.no_grad():
            return float(labels.loss(draft, collate(samples[:16])))

    untrained = loss()
    trainer = Trainer(
        draft, samples, labels, seed=0, budget=Budget(passes=4.0), dtype=torch.bfloat16
    )
    trainer.run(Stop(), lambda _: False)
    assert trainer.progress.num_steps == 60
    assert trainer.progress.num_passes == 4
    assert loss() < 0.85 * untrained
    for name, tensor in before.items():
        assert torch.equal(target.weights[name], tensor), name


@pytest.mark.torch
@pytest.mark.parametrize("make", [make_llama, make_qwen3])
def test_draft_starts_as_the_target_where_it_has_all_its_layers(tmp_path: Path, make: type) -> None:
    """Wrong source layers, head rows or norms at the start cost most of a short training."""
    import torch

    target = load_target(open_checkpoint(make(tmp_path / "m")))
    draft = initial_draft(target, [0, 1], DRAFT_IDS)
    tokens = torch.arange(40)[None]
    with torch.no_grad():
        wanted = target.logits(target.hidden(tokens))[..., torch.from_numpy(DRAFT_IDS)]
        torch.testing.assert_close(draft.logits(draft.hidden(tokens)), wanted)
        # In all its directions a narrowed draft is the same model, turned.
        turned = narrowed(draft, pattern_samples(4), draft.spec.hidden_size)
        torch.testing.assert_close(
            turned.logits(turned.hidden(tokens)), wanted, atol=1e-3, rtol=1e-3
        )


@pytest.mark.torch
def test_narrowed_keeps_the_directions_that_the_states_use(tmp_path: Path) -> None:
    """States confined to half of the dimensions lose nothing when the other half goes."""
    import torch

    target = load_target(open_checkpoint(make_llama(tmp_path / "m")))
    draft = initial_draft(target, [0, 1], DRAFT_IDS)
    with torch.no_grad():
        for name, tensor in draft.weights.items():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                tensor[16:] = 0
        draft.weights["model.embed_tokens.weight"] = draft.weights[
            "model.embed_tokens.weight"
        ].clone()
        draft.weights["model.embed_tokens.weight"][:, 16:] = 0
        tokens = torch.arange(40)[None]
        narrow = narrowed(draft, pattern_samples(40), 16)
        assert narrow.spec.hidden_size == 16
        assert not narrow.spec.embeddings_from_target
        torch.testing.assert_close(
            narrow.logits(narrow.hidden(tokens)),
            draft.logits(draft.hidden(tokens)),
            atol=1e-3,
            rtol=1e-3,
        )


@pytest.mark.torch
@pytest.mark.parametrize("labels", ["soft", "hard"])
def test_command_writes_a_checkpoint_that_reads_back(
    labels: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names, shapes, the map and the link to the target, through the reader the build uses."""
    target = make_llama(tmp_path / "target", layers=3)
    data = write_npz(tmp_path / "text.npz", pattern_samples())
    out = tmp_path / "sub" / "draft"
    code = cli.run(
        parse(
            "--target", str(target), "--out", str(out), "--data", str(data), "--minutes", "0.02",
            "--vocab", "160", "--json", "--quiet", "--labels", labels,
        )
    )  # fmt: skip
    assert code == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["out"] == str(out)
    assert printed["num_steps"] > 0

    draft = open_checkpoint(out)
    assert (draft.spec.num_layers, draft.spec.draft_vocab_size) == (2, 160)
    assert draft.spec.embeddings_from_target
    assert (draft.spec.vocab_size, draft.spec.eos_token_ids) == (320, (2,))
    ids = draft.draft_map()
    assert ids is not None
    assert (np.diff(ids) > 0).all()
    assert {2, *range(60, 240, 2)} <= set(ids.tolist())
    assert {draft.stored_dtype(name) for name in draft.tensor_names()} == {"F16"}
    assert draft.tensor("lm_head.weight").shape == (160, 32)

    modes = {path.stat().st_mode & 0o777 for path in out.iterdir()}
    assert modes == {(tmp_path / "text.npz").stat().st_mode & 0o777}  # as any file, not 0600

    config = json.loads((out / "config.json").read_text())
    assert config["target"]["fingerprint"] == open_checkpoint(target).fingerprint()
    assert config["measured"]["alpha"] == printed["measured"]["alpha"]
    assert sorted(path.name for path in out.parent.iterdir()) == ["draft"]


@pytest.mark.torch
def test_a_narrow_draft_reads_back(tmp_path: Path) -> None:
    target = make_llama(tmp_path / "target", layers=3, hidden=64)
    data = write_npz(tmp_path / "text.npz", pattern_samples())
    base = ("--target", str(target), "--out", str(tmp_path / "draft"), "--data", str(data))
    options = ("--passes", "1", "--vocab", "160", "--width", "32", "--from-layers", "2", "--quiet")
    assert cli.run(parse(*base, *options)) == 0
    draft = open_checkpoint(tmp_path / "draft")
    assert (draft.spec.num_layers, draft.spec.hidden_size) == (1, 32)
    assert draft.tensor("model.embed_tokens.weight").shape == (320, 32)


@pytest.mark.torch
def test_out_may_lead_through_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    """Its working folder was made there, and with it OUT, which then existed already."""
    target, data = make_llama(tmp_path / "t"), write_npz(tmp_path / "text.npz", pattern_samples())
    base = ("--target", str(target), "--data", str(data), "--labels", "hard", "--quiet")
    out = tmp_path / "draft" / ".." / "draft"
    assert cli.run(parse(*base, "--passes", "0.1", "--vocab", "160", "--out", str(out))) == 0
    assert (tmp_path / "draft" / "config.json").is_file()


@pytest.mark.torch
def test_interruption_while_writing_leaves_no_half_of_a_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = make_llama(tmp_path / "target")
    data = write_npz(tmp_path / "text.npz", pattern_samples())

    def interrupt(*_: object, **__: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr("safetensors.numpy.save", interrupt)
    out = tmp_path / "out" / "draft"
    base = ("--target", str(target), "--out", str(out), "--data", str(data), "--passes", "1")
    with pytest.raises(KeyboardInterrupt):
        cli.run(parse(*base, "--vocab", "160", "--quiet"))
    assert [path.name for path in out.parent.iterdir()] == ["draft.work"]
    monkeypatch.undo()
    assert cli.run(parse(*base, "--vocab", "160", "--quiet", "--resume")) == 0
    assert [path.name for path in out.parent.iterdir()] == ["draft"]


@pytest.mark.torch
def test_weights_that_are_not_finite_are_not_written(tmp_path: Path) -> None:
    """A diverged run must fail here, not when a bundle is built from it."""
    import torch

    from export.distill import artefact

    target = load_target(open_checkpoint(make_llama(tmp_path / "m")))
    draft = initial_draft(target, [0, 1], DRAFT_IDS)
    with torch.no_grad():
        draft.weights["lm_head.weight"][3, 3] = 1e6
    with pytest.raises(BackendError, match=r"lm_head\.weight"):
        artefact.write(tmp_path / "out", draft, DRAFT_IDS, some_facts(draft.spec))
    assert not (tmp_path / "out").exists()


def test_a_target_without_tokenizer_needs_data(tmp_path: Path) -> None:
    from export.distill.chat import frame_of

    with pytest.raises(SsdError, match="--data"):
        frame_of(open_checkpoint(make_llama(tmp_path / "m", tokenizer=False)))


def test_a_damaged_tokenizer_is_named(tmp_path: Path) -> None:
    from export.distill.chat import frame_of

    folder = make_llama(tmp_path / "m")
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(SsdError, match=r"tokenizer\.json"):
        frame_of(open_checkpoint(folder))


def test_frame_is_the_chat_template_around_a_question(tmp_path: Path) -> None:
    """Training text framed otherwise than a user's prompt trains for prompts that never come."""
    from export.distill.chat import frame_of

    frame = frame_of(open_checkpoint(make_llama(tmp_path / "m")))
    assert frame.before == "<|im_start|>user\n"
    assert frame.after == "<|im_end|>\n<|im_start|>assistant\n"
    ids = frame.encode(frame.before + "hello" + frame.after)
    assert ids[0] == 1
    assert frame.decode(ids) == "user\nhello\nassistant\n"


def test_drafts_start_from_both_ends_of_the_target() -> None:
    assert source_layers(2, 30) == [0, 29]
    assert source_layers(1, 30) == [0]
    assert source_layers(4, 30) == [0, 1, 28, 29]
    assert source_layers(5, 5) == [0, 1, 2, 3, 4]


def test_learning_rate_rises_then_falls_to_zero() -> None:
    assert schedule(0.0) < schedule(0.01) < schedule(0.02) == 1.0
    assert schedule(0.5) > schedule(0.9) > schedule(1.0) == pytest.approx(0.0, abs=1e-9)
