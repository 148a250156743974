"""What every peer's engine must do (``runtime.bench.dataset.peers.api``), whatever runs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.errors import BackendError, UsageError
from export.build.build import build
from export.build.options import BuildOptions
from runtime.bench.dataset.contestant import Contestant
from runtime.bench.dataset.peers import toy
from runtime.bench.dataset.peers.api import Q8_0, STORED, Peer, PeerModel
from runtime.bench.dataset.peers.registry import PEERS, open_peer
from runtime.llm import LLM
from tests.helpers.checkpoints import make_llama
from tests.helpers.tiny_gguf import make_gguf

VOCAB, MAX_LEN = 320, 64
PROMPTS = [[5, 200, 31, 7], [9, 9, 300], [12]]
REAL = [
    pytest.param("llama.cpp", marks=pytest.mark.llama),
    pytest.param("transformers", marks=pytest.mark.torch),
]


def weights(name: str, folder: Path) -> Path:
    """A .gguf file; for transformers a folder, since it unpacks .gguf by one package more."""
    if name != "transformers":
        return make_gguf(folder, vocab=VOCAB, seed=3)
    make_llama(folder / "model", vocab=VOCAB, seed=3)
    return folder / "model"


def model_of(path: Path, quantisation: str = STORED) -> PeerModel:
    return PeerModel(path, quantisation, num_threads=1, max_len=MAX_LEN)


@pytest.fixture(params=["toy", *REAL])
def peer(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Contestant]:
    monkeypatch.setitem(PEERS, "toy", toy.kind(VOCAB))
    model = model_of(weights(request.param, tmp_path))
    PEERS[request.param].require(model.path)
    with open_peer(request.param, model, VOCAB) as opened:
        yield opened


def test_as_many_tokens_as_asked_for_each_when_it_came(peer: Contestant) -> None:
    sample = peer.answer(PROMPTS[0], 7)
    assert len(sample.tokens) == 7
    assert all(0 <= token < VOCAB for token in sample.tokens)
    assert [block.num_tokens for block in sample.blocks] == [1] * 7
    times = [block.at_s for block in sample.blocks]
    assert times == sorted(times)
    assert sample.begun_s <= times[0]
    assert sample.prompt_s is not None
    assert sample.prompt_s >= 0
    assert sample.decode_s >= times[-1] - times[0]


def test_what_was_asked_before_leaves_no_trace(peer: Contestant) -> None:
    """A cache that is not emptied answers the last prompt, too."""
    alone = [peer.answer(prompt, 6).tokens for prompt in PROMPTS]
    again = [peer.answer(prompt, 6).tokens for prompt in reversed(PROMPTS)]
    assert alone == again[::-1]
    assert len(set(alone)) > 1


def test_going_on_is_the_same_as_a_longer_prompt(peer: Contestant) -> None:
    """The prompt's last id is taken in once, and by decoding."""
    whole = peer.answer(PROMPTS[0], 8).tokens
    rest = peer.answer([*PROMPTS[0], *whole[:3]], 5).tokens
    assert rest == whole[3:]


def test_it_stops_where_the_context_ends(peer: Contestant) -> None:
    prompt = [1 + place % 50 for place in range(MAX_LEN - 3)]
    assert len(peer.answer(prompt, 10).tokens) == 3
    assert peer.answer(PROMPTS[0], 0).tokens == ()


def test_it_says_what_runs_on_how_many_threads(peer: Contestant) -> None:
    assert peer.is_peer
    assert peer.note is None
    assert "threads: 1" in peer.description
    assert peer.name.partition(".")[0] in peer.description


def test_another_vocabulary_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundle's ids would mean other words there."""
    monkeypatch.setitem(PEERS, "toy", toy.kind(VOCAB))
    refusal = pytest.raises(UsageError, match="vocabulary of 320, the bundle one of 49152")
    with refusal, open_peer("toy", model_of(tmp_path), 49152):
        pytest.fail("it was opened")


@pytest.mark.parametrize("name", REAL)
def test_the_same_weights_give_plain_decoding_s_tokens(name: str, tmp_path: Path) -> None:
    """fp32 on both sides: an off-by-one in ids or positions would show."""
    path = weights(name, tmp_path)
    options = BuildOptions(
        target=str(path),
        out=tmp_path / "bundle",
        precision="fp32",
        max_len=MAX_LEN,
        max_batch=1,
        num_draft=0,
        max_branches=0,
    )
    with (
        open_peer(name, model_of(path), VOCAB) as other,
        LLM.open(build(options).bundle.path, mode="ar") as llm,
    ):
        for prompt in PROMPTS:
            done = llm.generate(prompt, max_tokens=12)
            ours = done.token_ids
            assert other.answer(prompt, 12).tokens[: len(ours)] == ours
            assert ours or done.finish_reason == "stop"


@pytest.mark.parametrize("name", REAL)
def test_damaged_weights_are_one_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    if name == "transformers":
        path = tmp_path / "broken"
        path.mkdir()
        (path / "config.json").write_text("{}")
    else:
        path.write_bytes(b"GGUF and no more")
    with pytest.raises(BackendError, match="cannot load"), open_peer(name, model_of(path), VOCAB):
        pytest.fail("it was opened")


@pytest.mark.llama
def test_requantised_weights_are_8_bits_and_do_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = make_gguf(tmp_path / "source", vocab=VOCAB, hidden=64, seed=3)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with open_peer("llama.cpp", model_of(path, Q8_0), VOCAB) as peer:
        assert "requantised (Q8_0)" in peer.description
        assert len(peer.answer(PROMPTS[0], 4).tokens) == 4
    assert [entry.name for entry in tmp_path.iterdir()] == ["source"]
    assert capfd.readouterr().err == ""


def test_a_toy_refuses_what_it_has_no_id_for() -> None:
    peer = Peer("toy", toy.Toy(10), model_of(Path()))
    with pytest.raises(BackendError, match="id 10 is none of 10"):
        peer.answer([3, 10], 2)
