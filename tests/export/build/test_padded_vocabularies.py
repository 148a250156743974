"""Acceptance rows V: pairs whose embedding tables are padded, through the real runtime.

The padding's rows of the head are so large that one of them wins every choice it may take part
in: a path that forgets to leave them out says nothing else.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.bundle import Bundle
from engines.errors import UsageError
from export.build.build import build
from export.build.options import BuildOptions
from export.build.pair import check_pair, view_target
from export.checkpoint.api import open_checkpoint
from export.checkpoint.weights import EMBEDDING, HEAD
from runtime.llm import LLM
from runtime.sampling.params import SamplingParams
from tests.helpers.checkpoints import byte_level_tokenizer, make_draft, make_llama

TOKENS = 320
LAWS = (SamplingParams(), SamplingParams(temperature=1.0, seed=3, top_p=0.95))
PROMPT = [5, 6, 7, 5, 6, 7, 5, 6]


def padded(folder: Path, vocab: int, *, hidden: int = 32, **options: Any) -> Path:
    """A checkpoint of ``vocab`` embeddings with a tokenizer of 320 ids."""
    plain = open_checkpoint(
        make_llama(folder / "plain", vocab=TOKENS, hidden=hidden, tokenizer=False, **options)
    )
    random = np.random.default_rng(1)
    tensors = {name: plain.tensor(name) for name in plain.tensor_names()}
    loud = random.normal(0, 100, (vocab - TOKENS, hidden)).astype(np.float32)
    for name in (EMBEDDING, HEAD):
        if name in tensors:
            tensors[name] = np.concatenate([tensors[name], loud])
    make_llama(folder, vocab=vocab, hidden=hidden, tokenizer=False, tensors=tensors, **options)
    (folder / "tokenizer.json").write_bytes(byte_level_tokenizer(TOKENS))
    return folder


def built(place: Path, target: Path, draft: Path | None, **options: Any) -> Bundle:
    options = {"precision": "fp32", "max_len": 64, "max_branches": 4, **options}
    return build(
        BuildOptions(str(target), None if draft is None else str(draft), place, **options)
    ).bundle


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """Of one target and draft: with padding of different sizes, and without."""
    folder = tmp_path_factory.mktemp("padded")
    target, draft = padded(folder / "t", 352, seed=2), padded(folder / "d", 336, seed=2, layers=1)
    plain_target, plain_draft = target / "plain", draft / "plain"
    for each in (plain_target, plain_draft):
        (each / "tokenizer.json").write_bytes(byte_level_tokenizer(TOKENS))
    return {
        "padded": built(folder / "padded", target, draft),
        "plain": built(folder / "plain", plain_target, plain_draft),
    }


def answers(bundle: Bundle, mode: str, **options: Any) -> list[tuple[int, ...]]:
    with LLM.open(bundle.path, mode=mode, **options) as llm:
        return [llm.generate(PROMPT, law, max_tokens=24).token_ids for law in LAWS]


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("ar", {}),
        ("sd", {}),
        ("ssd", {"fallback": "zero"}),
        ("ssd", {"fallback": "jit"}),
        ("ssd", {"fallback": "lookup"}),
    ],
)
def test_v1_a_padded_pair_says_what_the_same_pair_without_padding_says(
    bundles: dict[str, Bundle], mode: str, options: dict[str, str]
) -> None:
    """V1, V3. Greedy in the graph and sampled by the coupled rule, in every mode."""
    plain = answers(bundles["plain"], "ar")
    assert answers(bundles["padded"], mode, **options) == plain
    assert max(map(max, plain)) < TOKENS


@pytest.mark.parametrize("mode", ["sd", "ssd"])
def test_v1_padding_is_not_sampled_by_the_ratio_rule(bundles: dict[str, Bundle], mode: str) -> None:
    found = answers(
        bundles["padded"], mode, verify="ratio", fallback="zero" if mode == "ssd" else "auto"
    )
    assert max(map(max, found)) < TOKENS


def test_v1_log_probabilities_are_of_the_law_without_padding(bundles: dict[str, Bundle]) -> None:
    found = []
    for name in ("padded", "plain"):
        with LLM.open(bundles[name].path, mode="ar") as llm:
            found.append(llm.generate(PROMPT, max_tokens=4, logprobs=3).logprobs)
    assert found[0] == found[1]


@pytest.mark.parametrize("precision", ["int8", "int4"])
@pytest.mark.parametrize("tied", [True, False])
def test_v1_a_coded_table_has_no_padding_either(tmp_path: Path, precision: str, tied: bool) -> None:
    options = {"hidden": 64, "intermediate": 128, "tied": tied}
    target = padded(tmp_path / "t", 352, **options)
    bundle = built(tmp_path / "b", target, None, precision=precision)
    assert bundle.target.model.vocab_size == bundle.target.model.output_vocab == TOKENS
    assert max(map(max, answers(bundle, "ar"))) < TOKENS


def test_v4_an_id_of_the_padding_is_refused_in_a_prompt(bundles: dict[str, Bundle]) -> None:
    """Lookup proposes what stands in the text: nothing else may bring such an id in."""
    with (
        LLM.open(bundles["padded"].path, mode="ar") as llm,
        pytest.raises(UsageError, match="token id 340, the vocabulary ends at 319"),
    ):
        llm.generate([5, 340])


def test_v4_no_draft_row_leads_beyond_the_targets_tokens(tmp_path: Path) -> None:
    """A map may name the target's padding: such rows could only be drafted in vain."""
    target = open_checkpoint(padded(tmp_path / "t", 352))
    draft = open_checkpoint(make_draft(tmp_path / "d", vocab=352, draft_vocab=340))
    whole = draft.draft_map()
    assert whole is not None
    assert whole.max() >= TOKENS
    view = check_pair(target, draft, 64)
    assert view.vocab_map is not None
    np.testing.assert_array_equal(view.vocab_map, whole[whole < TOKENS])
    head = draft.tensor(HEAD)[whole < TOKENS]
    np.testing.assert_array_equal(view.tensor(HEAD), head)
    assert view.spec.draft_vocab_size == len(head)
    bundle = built(tmp_path / "b", tmp_path / "t", tmp_path / "d")
    assert answers(bundle, "sd") == answers(bundle, "ar")


def test_v1_padding_that_a_gguf_file_gives_names_is_padding(tmp_path: Path) -> None:
    """Converters name the ids that the original tokenizer does not list [PAD320], [PAD321], ..."""
    target = padded(tmp_path / "t", 330)
    document = json.loads(byte_level_tokenizer(TOKENS))
    document["model"]["vocab"] |= {f"[PAD{index}]": index for index in range(TOKENS, 330)}
    (target / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    opened = open_checkpoint(target)
    assert view_target(opened).spec.vocab_size == TOKENS
    plain = open_checkpoint(padded(tmp_path / "d", 352))
    assert check_pair(plain, opened, 64).spec.vocab_size == TOKENS
    assert check_pair(opened, plain, 64).spec.vocab_size == TOKENS


def test_end_tokens_beyond_the_tokenizer_stay(tmp_path: Path) -> None:
    """A model may end its texts with an id that its tokenizer does not list."""
    target = make_llama(tmp_path / "t", vocab=352, tokenizer=False, config={"eos_token_id": 330})
    (target / "tokenizer.json").write_bytes(byte_level_tokenizer(TOKENS))
    assert view_target(open_checkpoint(target)).spec.vocab_size == 331
