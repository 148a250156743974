"""Texts written and scored to judge a pair by, on real engines."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from engines.manifest import TARGET
from runtime.calibrate import sample
from runtime.calibrate.sample import pair_laws, ranked_texts
from runtime.memo import Memo
from runtime.sampling.logits import law
from runtime.sampling.params import SamplingParams
from runtime.sampling.ratio import draft_law
from runtime.score import score
from tests.helpers.tiny_bundle import tiny_bundle


@pytest.fixture
def memo(tmp_path, monkeypatch) -> Memo:
    monkeypatch.setenv("SSD_TRT_CACHE", str(tmp_path / "users"))
    monkeypatch.setattr(sample, "SAMPLE_S", 0.3)
    return Memo(tmp_path / "given")


@pytest.fixture(scope="module")
def bundle():
    return tiny_bundle(max_batch=1, max_len=400)


def test_texts_are_the_targets_and_ranks_the_drafts(bundle, memo) -> None:
    text = ranked_texts(bundle, memo)[0]
    ids = [*text.prompt, *text.answer]
    first = len(text.prompt) - 1
    target = score(bundle.path, TARGET, ids)[first:-1]
    assert target.argmax(axis=1).tolist() == list(text.answer)
    draft = score(bundle.path, "draft", ids)[first:-1]
    ids_map = np.load(bundle.path / "draft" / "vocab_map.npy")
    for row, token, rank in zip(draft, text.answer, text.ranks, strict=True):
        ranking = ids_map[np.argsort(-row, kind="stable")].tolist()
        assert rank == ranking.index(token)


def test_a_token_that_the_draft_does_not_have_ranks_last(bundle, memo) -> None:
    ids_map = np.load(bundle.path / "draft" / "vocab_map.npy")
    unknown = next(token for token in range(320) if token not in ids_map)
    with sample._sampler(bundle, memo) as sampler:
        assert sampler.ranks([1, 2], [unknown, int(ids_map[0])])[0] == len(ids_map)


def test_texts_are_written_once(bundle, memo, monkeypatch) -> None:
    first = ranked_texts(bundle, memo)
    monkeypatch.setattr(sample, "LoadedPair", None)
    assert ranked_texts(bundle, memo) == first


@pytest.mark.parametrize("value", [None, 3, [{}], [{"prompt": [1], "answer": [2], "ranks": []}]])
def test_remembered_texts_of_another_form_are_written_again(bundle, memo, value) -> None:
    first = ranked_texts(bundle, memo)
    (key,) = (key for key in memo._read() if key.startswith("texts"))
    memo.put(key, value)
    assert ranked_texts(bundle, memo)[0] == first[0]


def test_laws_are_those_of_both_engines_along_the_text(bundle, memo, monkeypatch) -> None:
    written = []
    texts = sample._Sampler.texts

    def note(self, params):
        for text in texts(self, params):
            written.append(text)
            yield text

    monkeypatch.setattr(sample._Sampler, "texts", note)
    params = SamplingParams(temperature=0.8)
    laws = pair_laws(bundle, 0.8, memo)
    assert laws is not None
    prompt, answer = written[0]
    ids, first = [*prompt, *answer], len(prompt) - 1
    target = score(bundle.path, TARGET, ids)[first:-1]
    draft = score(bundle.path, "draft", ids)[first:-1]
    ids_map = np.load(bundle.path / "draft" / "vocab_map.npy")
    for place, token in enumerate(answer):
        q, p = draft_law(draft[place], params, ids_map), law(target[place], params)
        count = q.ids.size
        np.testing.assert_allclose(laws.draft[place, :count], q.probs, rtol=1e-9)
        np.testing.assert_allclose(laws.target[place, :count], p[q.ids], rtol=1e-9)
        assert laws.token_target[place] == pytest.approx(p[token], rel=1e-9)
        rank = laws.token_rank[place]
        assert (rank < count and q.ids[rank] == token) or token not in q.ids
    assert laws.left[: len(answer)].tolist() == list(range(len(answer), 0, -1))
    assert len(laws.left) == sum(len(answer) for _, answer in written)


def test_a_bundle_too_short_for_any_prompt_has_no_texts(memo) -> None:
    short = tiny_bundle(max_batch=1, max_len=24)
    assert ranked_texts(short, memo) == []
    assert pair_laws(short, 1.0, memo) is None


def test_a_damaged_chat_template_does_not_keep_texts_from_being_written(tmp_path) -> None:
    """A template that the user may never ask for must not stop the choice of a mode."""
    template = tmp_path / "chat_template.jinja"
    pair = SimpleNamespace(chat_template_path=template, manifest=SimpleNamespace(special_tokens={}))
    for source in (b"{% if %}", b"\xff", b"{{ raise_exception('no') }}"):
        template.write_bytes(source)
        assert sample._turn(pair, "hello") is None  # type: ignore[arg-type]
    template.write_bytes(b"<{{ messages[0].content }}>")
    assert sample._turn(pair, "hello") == "<hello>"  # type: ignore[arg-type]
