"""``generate``: how it reads stdin, and how every bad input ends in one line."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from engines.errors import BundleCorruptError, UsageError
from runtime.cli.entry import main
from tests.runtime.cli.commands import GENERATE
from tests.runtime.cli.fake_llm import FakeBundle, FakeLlm


def failure(capsys: pytest.CaptureFixture[str], code: int) -> str:
    """The one line of a run that must have failed."""
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


def give_stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="ascii"))


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_stdin_is_read_as_bytes_without_the_last_newline(
    monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """The locale must not decide how a prompt is read (here it says ASCII)."""
    give_stdin(monkeypatch, f"naïve\n😀{ending}".encode())
    bundle = FakeBundle()
    assert main([*GENERATE, "--prompt", "-", "--quiet"], bundle.open) == 0
    assert bundle.requests[0][0] == "naïve\n😀"


@pytest.mark.parametrize("data", [b"", b"\n", b" \n\t", b"ok\xff", b"\xed\xa0\x80"])
def test_a_bad_prompt_on_stdin_is_refused(
    data: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    give_stdin(monkeypatch, data)
    bundle = FakeBundle()
    message = failure(capsys, main([*GENERATE, "--prompt", "-"], bundle.open))
    assert ("empty" if not data.strip() else "UTF-8") in message
    assert bundle.events == [], "no model was loaded for it"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--max-tokens 0", "--max-tokens"),
        ("--max-tokens -3", "--max-tokens"),
        ("--max-tokens 1.5", "--max-tokens"),
        ("--temperature -0.1", "temperature"),
        ("--temperature nan", "temperature"),
        ("--temperature inf", "temperature"),
        ("--temperature warm", "--temperature"),
        ("--top-p 0", "top_p"),
        ("--top-p 1.01", "top_p"),
        ("--top-p nan", "top_p"),
        ("--top-k -1", "top_k"),
        ("--seed -1", "seed"),
        ("--seed 18446744073709551616", "seed"),
        ("--seed x", "--seed"),
        ("--mode fast", "--mode"),
        ("--verify maybe", "--verify"),
        ("--num-draft 0", "--num-draft"),
        ("--branches 0", "--branches"),
        ("--max-tok 3", "--max-tok"),
        ("--min-tokens -1", "--min-tokens"),
        ("--min-tokens 9 --max-tokens 8", "min-tokens is 9, more than max-tokens"),
        ("--stop=", "--stop"),
        ("--stop \udcff", "UTF-8"),
        ("--stop-token-ids -1", "--stop-token-ids"),
        ("--stop-token-ids", "--stop-token-ids"),
        ("--stop-token-ids eos", "--stop-token-ids"),
        ("--logprobs -1 --json", "--logprobs"),
        ("--logprobs 2", "add --json"),
        ("--min-p 1.5", "min_p"),
        ("--fallback none", "--fallback"),
        ("--saguaro 1.1", "--saguaro"),
        ("--saguaro nan", "--saguaro"),
        ("--saguaro some", "--saguaro"),
        ("--batch 2", "--batch goes with --prompts"),
        ("--trace no/such/folder/t.json", "--trace"),
        ("--trace /tmp", "--trace"),
        ("--prompts p.txt", "--prompts"),
        ("--prompt=", "empty"),
        ("--prompt \udcff", "UTF-8"),
    ],
)
def test_a_bad_value_is_one_line_and_exit_code_2(
    options: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = FakeBundle()
    code = main([*GENERATE, "--prompt", "hi", *options.split(" ")], bundle.open)
    assert reason in failure(capsys, code)
    assert bundle.events == [], "no model was loaded for it"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "COMMAND"),
        (["chatter"], "chatter"),
        (["generate"], "--bundle"),
        (GENERATE, "--prompt"),
        ([*GENERATE, "--prompt", "a", "b\nc"], "unrecognized"),
    ],
)
def test_a_bad_command_line_is_one_line(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reason in failure(capsys, main(arguments, FakeBundle().open))


def test_trouble_with_a_file_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """It is the user's to mend wherever it shows, so no traceback."""

    def forbidden(*_args: Any, **_options: Any) -> Any:
        raise PermissionError(13, "Permission denied", "b/bundle.json")

    message = failure(capsys, main([*GENERATE, "--prompt", "hi"], forbidden))
    assert "Permission denied: 'b/bundle.json'" in message


def test_chat_without_a_template_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    bundle = FakeBundle(has_chat_template=False)
    code = main([*GENERATE, "--prompt", "hi", "--chat"], bundle.open)
    assert "--chat needs a chat template" in failure(capsys, code)
    assert bundle.events == ["open auto", "close auto"], "it was closed again"


def test_a_prompt_that_does_not_fit_is_refused_with_the_figures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A prompt of exactly max_len leaves no room for a single token of an answer."""
    bundle = FakeBundle(max_len=5)
    message = failure(capsys, main([*GENERATE, "--prompt", "12345"], bundle.open))
    assert "5 tokens" in message
    assert "holds 5" in message
    assert main([*GENERATE, "--prompt", "1234"], bundle.open) == 0


def test_a_byte_order_mark_is_no_part_of_the_prompt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some editors write one; alone it was a prompt of three tokens."""
    bundle = FakeBundle()
    give_stdin(monkeypatch, b"\xef\xbb\xbfhi")
    assert main([*GENERATE, "--prompt", "-", "--quiet"], bundle.open) == 0
    assert bundle.requests[0][0] == "hi"
    capsys.readouterr()
    give_stdin(monkeypatch, b"\xef\xbb\xbf\n")
    assert "empty" in failure(capsys, main([*GENERATE, "--prompt", "-"], bundle.open))


def test_a_stdin_that_does_not_end_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``yes | ... --prompt -`` filled the memory."""
    monkeypatch.setattr("runtime.cli.prompts.MAX_BYTES", 1 << 20)
    with open("/dev/zero", encoding="utf-8") as endless:
        monkeypatch.setattr("sys.stdin", endless)
        message = failure(capsys, main([*GENERATE, "--prompt", "-"], FakeBundle().open))
    assert "stdin is longer than 1 MiB" in message


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (BundleCorruptError("the bundle \x1b[2J\x07 is bad"), r"the bundle \x1b[2J\x07 is bad"),
        (MemoryError("36 TiB"), "not enough memory (36 TiB)"),
    ],
)
def test_any_message_is_one_line_of_plain_text(
    error: Exception, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_args: Any, **_options: Any) -> Any:
        raise error

    assert words in failure(capsys, main([*GENERATE, "--prompt", "hi"], fails))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--json-schema", "missing.json"], "cannot read --json-schema missing.json"),
        (["--json-schema", "README.md"], "the JSON schema is not JSON"),
        (["--regex", "a", "--choice", "b"], "not allowed with"),
        (["--regex", ""], "it is empty"),
        (["--regex", "a", "--min-tokens", "3"], "min-tokens cannot go with a grammar"),
        (["--json-object", "--ignore-eos"], "ignore-eos cannot go with a grammar"),
        (["--logit-bias", "7"], "'7' is not a token id, = and a number"),
        (["--logit-bias", "7=nan"], "logit_bias is {7: nan}"),
        (["--repetition-penalty", "0"], "repetition_penalty is 0.0"),
        (["--n", "0"], "whole number >= 1"),
        (["--n", "129"], "n is 129; it must be a whole number from 1 to 128"),
        (["--regex", "("], "the regular expression cannot be used"),
        (["--grammar", "README.md"], "the grammar cannot be used"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_asked_for_is_refused_before_a_model_is_loaded(
    options: list[str], reason: str, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    bundle = FakeBundle()
    code = main([*GENERATE, "--mode", "ar", "--prompt", "hi", *options], bundle.open)
    assert reason in failure(capsys, code)
    assert bundle.events == []


def test_a_schema_that_cannot_be_kept_is_refused_before_a_model_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema, bundle = tmp_path / "schema.json", FakeBundle()
    schema.write_text('{"type": "object", "not": {}}')
    code = main([*GENERATE, "--prompt", "hi", "--json-schema", str(schema)], bundle.open)
    assert "the JSON schema cannot be used" in failure(capsys, code)
    assert bundle.events == []


def test_what_is_refused_after_loading_leaves_no_empty_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object, **_options: object) -> None:
        raise UsageError("stop-token-ids has token id 900, the vocabulary ends at 5")

    monkeypatch.setattr(FakeLlm, "generate", refuse)
    code = main([*GENERATE, "--mode", "ar", "--prompt", "hi"], FakeBundle().open)
    assert "token id 900" in failure(capsys, code)


def test_several_answers_to_each_of_many_prompts_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.txt").write_text("one\ntwo\n")
    code = main([*GENERATE, "--prompts", str(tmp_path / "p.txt"), "--n", "2"], FakeBundle().open)
    assert "--n goes with --prompt" in failure(capsys, code)
