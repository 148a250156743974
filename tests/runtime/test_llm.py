"""The offline API in wrong hands: misuse is refused and leaves the model as good as it was."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from engines.bundle import seal_bundle
from engines.errors import CapacityError, SsdError, UsageError
from runtime.llm import LLM, score
from tests.helpers.tiny_bundle import tiny_bundle

PROMPT = [7, 8, 9, 10]


@pytest.fixture(params=["ar", "ssd"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    with LLM.open(tiny_bundle(max_batch=1).path, mode=request.param) as opened:
        yield opened


def copy_of(folder: Path, *, template: bytes) -> Path:
    """A sound bundle with another chat template."""
    bundle = tiny_bundle(max_batch=1)
    shutil.copytree(bundle.path, folder)
    (folder / "chat_template.jinja").write_bytes(template)
    seal_bundle(folder, bundle.manifest)
    return folder


@pytest.mark.parametrize(
    "prompt",
    [[], [1.0], [True, 2], ["a"], [[1, 2]], [None], "", b"hello", {1, 2}, {1: 2}, None],
    ids=repr,
)
def test_what_is_no_list_of_ids_is_refused_and_does_no_harm(llm: LLM, prompt: object) -> None:
    """A set reached the engine's thread, whose failure then refused every later request."""
    plain = llm.generate(PROMPT, max_tokens=8).token_ids
    with pytest.raises(UsageError):
        llm.generate(prompt, max_tokens=8)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="SamplingParams"):
        llm.generate(PROMPT, {"temperature": 1}, max_tokens=8)  # type: ignore[arg-type]
    assert llm.generate(PROMPT, max_tokens=8).token_ids == plain


def test_whole_numbers_of_numpy_are_numbers(llm: LLM) -> None:
    plain = llm.generate(PROMPT, max_tokens=8).token_ids
    assert llm.generate(np.array(PROMPT), max_tokens=np.int64(8)).token_ids == plain
    assert llm.generate(tuple(map(np.uint16, PROMPT)), max_tokens=8).token_ids == plain


@pytest.mark.parametrize("max_tokens", [0, -1, True, 1.0, "5", None, float("nan")])
def test_a_budget_that_is_no_whole_number_is_refused(llm: LLM, max_tokens: object) -> None:
    with pytest.raises(UsageError, match="max-tokens"):
        llm.generate(PROMPT, max_tokens=max_tokens)  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_exception_of_the_listener_is_the_callers_and_the_next_text_is_exact(
    llm: LLM, error: type[BaseException]
) -> None:
    plain = llm.generate(PROMPT, max_tokens=12).token_ids

    def listen(_piece: str) -> None:
        raise error

    with pytest.raises(error):
        llm.generate(PROMPT, max_tokens=12, on_text=listen)
    assert llm.generate(PROMPT, max_tokens=12).token_ids == plain


def test_a_second_request_at_once_is_refused_and_the_first_is_exact(llm: LLM) -> None:
    """From the listener or from another thread: mixed, both texts would be wrong."""
    plain = llm.generate(PROMPT, max_tokens=12).token_ids
    refusals: list[str] = []

    def second() -> None:
        try:
            llm.generate(PROMPT)
        except SsdError as error:
            refusals.append(str(error))

    def listen(_piece: str) -> None:
        second()
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()

    assert llm.generate(PROMPT, max_tokens=12, on_text=listen).token_ids == plain
    assert len(refusals) >= 2
    assert all("in the middle of another request" in refusal for refusal in refusals)


def test_a_closed_model_says_so(llm: LLM) -> None:
    llm.close()
    llm.close()
    with pytest.raises(UsageError, match=r"closed; open the bundle again"):
        llm.generate(PROMPT)


@pytest.mark.parametrize("name", ["num_draft", "branches"])
@pytest.mark.parametrize("value", [-1, 1.5, "2", True, float("nan")])
def test_a_limit_that_is_no_count_is_refused(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=name):
        LLM.open(tiny_bundle(max_batch=1).path, mode="ar", **{name: value})  # type: ignore[arg-type]


def test_a_text_far_beyond_the_context_is_refused_without_tokenizing_it(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """30 MB on stdin took 45 seconds, in which ctrl-C was not heard."""
    monkeypatch.setattr(llm.tokenizer, "encode", lambda *_args, **_named: pytest.fail("tokenized"))
    with pytest.raises(CapacityError, match="100000 characters, more than 160 tokens"):
        llm.encode("x" * 100_000)
    with pytest.raises(UsageError, match="bytes"):
        llm.encode(b"x")  # type: ignore[arg-type]


@pytest.mark.parametrize("template", [b"{% for %}", b"\xff\xfe"])
def test_a_damaged_chat_template_keeps_only_chats_out(tmp_path: Path, template: bytes) -> None:
    with LLM.open(copy_of(tmp_path / "b", template=template), mode="ar") as llm:
        assert llm.has_chat_template
        assert llm.generate(llm.encode("plain"), max_tokens=2).token_ids
        with pytest.raises(SsdError, match="chat template"):
            llm.encode("hello", chat=True)


def test_a_bundle_may_be_moved_while_it_is_loaded(tmp_path: Path) -> None:
    folder = copy_of(tmp_path / "b", template=b"{{ messages[0].content }}")
    with LLM.open(folder, mode="ssd") as llm:
        plain = llm.generate(PROMPT, max_tokens=12).token_ids
        folder.rename(tmp_path / "elsewhere")
        shutil.rmtree(tmp_path / "elsewhere")
        assert llm.encode("hello", chat=True) == llm.encode("hello")
        assert llm.generate(PROMPT, max_tokens=12).token_ids == plain


def test_scores_are_of_the_target_or_the_draft() -> None:
    bundle = tiny_bundle(max_batch=1).path
    assert score(bundle, "draft", [1, 2]).shape == (2, 300)
    with pytest.raises(UsageError, match="role is 'both'"):
        score(bundle, "both", [1, 2])
