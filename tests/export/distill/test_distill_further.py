"""Going on from a draft that was trained earlier."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from engines.errors import SsdError, UsageError
from export.checkpoint.api import open_checkpoint
from export.checkpoint.spec import ModelSpec
from export.checkpoint.weights import EMBEDDING
from export.distill import cli, pipeline
from export.distill.corpus import Sample
from export.distill.llama import Llama
from export.distill.train import FURTHER_RATE, PEAK_RATE, Trainer
from tests.export.distill.sample_files import write_npz
from tests.helpers.checkpoints import make_llama

pytestmark = pytest.mark.torch


def parse(*options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    return parser.parse_args(options)


def counting(seed: int, num: int = 60) -> list[Sample]:
    """Answers that count on by two from the prompt's last id."""
    rng = np.random.default_rng(seed)
    return [
        Sample(np.concatenate([rng.integers(3, 300, 5), start + 2 * np.arange(20)]), 5, 0.0)
        for start in rng.integers(20, 120, num) * 2
    ]


class Watched(Trainer):
    """Notes the weights that each training begins with, and the highest rate that it had."""

    begun: ClassVar[list[dict[str, np.ndarray]]] = []
    rates: ClassVar[list[float]] = []

    def run(self, *args: object, **options: object) -> None:
        weights = self.draft.weights.items()
        self.begun.append({name: tensor.detach().numpy().copy() for name, tensor in weights})
        self.rates.append(0.0)
        super().run(*args, **options)  # type: ignore[arg-type]

    def _step(self, *args: object) -> None:
        super()._step(*args)  # type: ignore[arg-type]
        self.rates[-1] = max(self.rates[-1], self.optimizer.param_groups[0]["lr"])


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> type[Watched]:
    """What the test's trainings begin with, in their order."""
    monkeypatch.setattr(Watched, "begun", [])
    monkeypatch.setattr(Watched, "rates", [])
    monkeypatch.setattr(pipeline, "Trainer", Watched)
    return Watched


class Pair:
    """A tiny target, text, and a draft trained on some of it."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.target = make_llama(folder / "target", layers=3, hidden=64)
        self.draft = folder / "first"
        self.train("first", 0, "--vocab", "160", *options)

    def train(self, name: str, seed: int, *options: str, target: Path | None = None) -> Path:
        data = write_npz(self.folder / f"{name}.npz", counting(seed))
        about = ("--target", str(target or self.target), "--out", str(self.folder / name))
        fixed = ("--data", str(data), "--passes", "6", "--quiet")
        assert cli.run(parse(*about, *fixed, *options)) == 0
        return self.folder / name


@pytest.mark.parametrize("shape", [("--from-layers", "0", "2"), ("--width", "32")])
def test_it_goes_on_with_the_weights_and_ids_of_the_earlier_draft(
    shape: tuple[str, ...], tmp_path: Path, trainings: type[Watched]
) -> None:
    """Starting from the target's layers again, or with ids chosen anew, would throw away what the
    first run has learnt, and nothing but the figures would show it."""
    pair = Pair(tmp_path, *shape)
    found = open_checkpoint(pair.train("second", 1, "--start-from", str(pair.draft)))
    first, begun = open_checkpoint(pair.draft), trainings.begun[1]
    for name in first.tensor_names():
        assert np.array_equal(begun[name], first.tensor(name)), name
    # A second run at the peak of a first would lose what it starts with.
    assert trainings.rates == pytest.approx([PEAK_RATE, FURTHER_RATE], rel=0.1)
    assert found.spec == first.spec
    assert np.array_equal(found.draft_map(), first.draft_map())
    assert not np.array_equal(found.tensor("lm_head.weight"), first.tensor("lm_head.weight"))
    assert json.loads((tmp_path / "second" / "config.json").read_text())["target"]
    card = (tmp_path / "second" / "README.md").read_text()
    assert "trained further from the draft first." in card
    assert "--start-from first --seed 0" in card


@pytest.mark.parametrize("shape", [("--from-layers", "0", "2"), ("--width", "32")])
def test_it_goes_on_with_another_choice_of_ids(
    shape: tuple[str, ...], tmp_path: Path, trainings: type[Watched]
) -> None:
    """What the draft knows of an id must stay with that id, not with the row it was in."""
    pair = Pair(tmp_path, *shape)
    options = ("--start-from", str(pair.draft), "--vocab", "200")
    found = open_checkpoint(pair.train("second", 1, *options))
    first, begun = open_checkpoint(pair.draft), trainings.begun[1]
    ids, own = found.draft_map().tolist(), first.draft_map().tolist()
    assert len(ids) == 200
    assert set(ids) - set(own)
    head = first.tensor("lm_head.weight")
    for at, number in enumerate(ids):
        row = begun["lm_head.weight"][at]
        if number in own:
            np.testing.assert_array_equal(row, head[own.index(number)])
        else:  # a row of the target's would be far too likely: the draft's states have moved
            np.testing.assert_allclose(row, head.mean(0), atol=1e-6)
    card = (tmp_path / "second" / "README.md").read_text()
    assert "--start-from first --vocab 200" in card
    assert "Proposes 200 of the target's" in card


def test_a_draft_with_all_ids_is_written_with_a_head_and_a_map(tmp_path: Path) -> None:
    """It trained to its end, and failed when the card was written."""
    pair = Pair(tmp_path)
    whole = make_llama(tmp_path / "whole", layers=1, hidden=64, tied=True)
    config = json.loads((whole / "config.json").read_text())
    config["target"] = json.loads((pair.draft / "config.json").read_text())["target"]
    (whole / "config.json").write_text(json.dumps(config))
    found = open_checkpoint(pair.train("second", 1, "--start-from", str(whole)))
    assert found.draft_map().tolist() == list(range(320))
    assert found.tensor("lm_head.weight").shape == (320, 64)


def test_a_draft_of_another_target_is_refused_before_training(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    other = make_llama(tmp_path / "other", layers=3, hidden=64, seed=7)
    with pytest.raises(UsageError, match="was trained for target, whose files differ"):
        pair.train("second", 1, "--start-from", str(pair.draft), target=other)
    with pytest.raises(UsageError, match="is no draft of `python -m export distill`"):
        pair.train("third", 1, "--start-from", str(pair.target))
    assert not (tmp_path / "second").exists()


@pytest.mark.parametrize(
    ("shape", "had"), [(("--from-layers", "0", "2"), 2), (("--width", "32", "--layers", "1"), 1)]
)
def test_a_draft_that_grows_says_at_first_what_it_said_before(
    shape: tuple[str, ...], had: int, tmp_path: Path, trainings: type[Watched]
) -> None:
    """Layers that began as anything else would throw away what the first run has learnt."""
    import torch

    pair = Pair(tmp_path, *shape)
    options = ("--start-from", str(pair.draft), "--layers", "3")
    found = open_checkpoint(pair.train("second", 1, *options))
    first, target = open_checkpoint(pair.draft), open_checkpoint(pair.target)
    begun = trainings.begun[1]
    text = torch.tensor([[5, 40, 42, 44, 46]])

    def said(spec: ModelSpec, weights: dict[str, np.ndarray]) -> np.ndarray:
        tensors = {name: torch.from_numpy(weight) for name, weight in weights.items()}
        tensors.setdefault(EMBEDDING, torch.from_numpy(target.tensor(EMBEDDING)))
        llama = Llama(spec, tensors)
        return llama.logits(llama.hidden(text)).numpy()

    before = said(first.spec, {name: first.tensor(name) for name in first.tensor_names()})
    assert found.spec == replace(first.spec, num_layers=3)
    np.testing.assert_array_equal(said(found.spec, begun), before)
    for layer in range(had - 1, 2):  # the added ones, which have learnt since
        for part in ("self_attn.o_proj", "mlp.down_proj", "mlp.gate_proj", "self_attn.q_proj"):
            name = f"model.layers.{layer}.{part}.weight"
            assert not np.array_equal(found.tensor(name), begun[name].astype(np.float16)), name
    card = (tmp_path / "second" / "README.md").read_text()
    assert f"trained further from the draft first, which had {had}." in card
    assert "--start-from first --layers 3 --seed 0" in card


@pytest.mark.parametrize("changed", ["the text", "the draft"])
def test_a_run_goes_on_with_what_it_began_with(
    changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights of one draft went on under the ids of another, or the process died in the optimiser;
    text that the run had learnt could be measured as held out. The names stay the same."""
    pair = Pair(tmp_path, "--from-layers", "0", "2")
    options = ("--start-from", str(pair.draft), "--work", str(tmp_path / "w"), "--resume")

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "run", killed)
        with pytest.raises(KeyboardInterrupt):
            pair.train("second", 1, *options)
    if changed == "the draft":
        config = json.loads((pair.draft / "config.json").read_text())
        (pair.draft / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-4}))
        with pytest.raises(UsageError, match=r"has started from first, .*, this command first, "):
            pair.train("second", 1, *options)
    else:
        with pytest.raises(UsageError, match=r"has training text 58 sequences, .*command 58 seq"):
            pair.train("second", 2, *options)
    assert not (tmp_path / "second").exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"num_hidden_layers": 1}, "model.layers.1"),
        ({"vocab_size": 400}, "has 400 ids in its config.json, the target 320"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope scaling LinearRope"),
    ],
)
def test_an_earlier_draft_is_read_as_it_is_or_refused(
    change: dict[str, object], told: str, tmp_path: Path
) -> None:
    """A layer was dropped, and what the decoder does not know was left out, without a word."""
    pair = Pair(tmp_path, "--from-layers", "0", "2")
    config = json.loads((pair.draft / "config.json").read_text())
    (pair.draft / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(SsdError, match=told):
        pair.train("second", 1, "--start-from", str(pair.draft))
    assert not (tmp_path / "second.work").exists()


def test_a_draft_does_not_shrink(tmp_path: Path) -> None:
    pair = Pair(tmp_path, "--from-layers", "0", "2")
    with pytest.raises(UsageError, match="--layers 1: the draft first has 2, and can only grow"):
        pair.train("second", 1, "--start-from", str(pair.draft), "--layers", "1")
    with pytest.raises(UsageError, match=r"--layers must be 1 to 3 \(the target's layers\)"):
        pair.train("second", 1, "--start-from", str(pair.draft), "--layers", "4")
    assert not (tmp_path / "second").exists()
    assert not (tmp_path / "second.work").exists()


@pytest.mark.parametrize("option", [("--width", "32"), ("--from-layers", "1")])
def test_the_earlier_drafts_shape_is_not_to_be_changed(
    option: tuple[str, str], tmp_path: Path
) -> None:
    base = ("--target", "any", "--out", str(tmp_path / "out"), "--minutes", "1")
    with pytest.raises(UsageError, match="--start-from keeps a draft's width and layers"):
        cli.run(parse(*base, "--start-from", "any", *option))
