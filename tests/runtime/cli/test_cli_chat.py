"""``chat``: turns from stdin, answers to stdout, and what ends them."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engines.errors import UsageError
from runtime.cli.entry import main
from tests.runtime.cli.fake_llm import FakeBundle, FakeLlm

CHAT = ["chat", "--bundle", "b", "--mode", "ar"]
DEADLINE_S = 60


def give_stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="ascii"))


def talk(
    monkeypatch: pytest.MonkeyPatch, bundle: FakeBundle, lines: str, *options: str
) -> list[str]:
    """The prompts that the model was given."""
    give_stdin(monkeypatch, lines.encode())
    assert main([*CHAT, *options], bundle.open) == 0
    return [prompt for prompt, *_ in bundle.requests]


def test_each_turn_has_those_before_it(monkeypatch, capsys) -> None:
    bundle = FakeBundle(answer="ok", max_len=1000)
    prompts = talk(monkeypatch, bundle, "a\n\nb\n/clear\nc\n/exit\nd\n", "--system", "s")
    assert prompts == ["<s:s><u:a>", "<s:s><u:a><a:ok><u:b>", "<s:s><u:c>"]
    out, err = capsys.readouterr()
    assert out == "ok\n" * 3
    assert err.count("acceptance length") == 3
    assert bundle.events == ["open ar", "close ar"]


def test_what_no_longer_fits_is_forgotten_and_said_to_be(monkeypatch, capsys) -> None:
    bundle = FakeBundle(answer="ok", max_len=40)
    prompts = talk(monkeypatch, bundle, "aaaaaaaa\nbbbbbbbb\ncccccccc\n", "--system", "s")
    assert prompts[1:] == ["<s:s><u:bbbbbbbb>", "<s:s><u:cccccccc>"]
    assert capsys.readouterr().err.count("no longer fit, and are forgotten") == 2


def test_a_turn_that_cannot_be_answered_is_not_kept(monkeypatch, capsys) -> None:
    """The next one would fail by it, too."""
    bundle = FakeBundle(answer="ok", max_len=40)
    assert talk(monkeypatch, bundle, "a" * 50 + "\nb\n") == ["<u:b>"]
    assert "error: this turn alone leaves no room" in capsys.readouterr().err


def test_a_turn_that_cannot_be_put_takes_none_of_the_others_along(monkeypatch, capsys) -> None:
    """They were forgotten one by one to make room for it, and then it was refused."""
    bundle = FakeBundle(answer="ok", max_len=60)
    prompts = talk(monkeypatch, bundle, "a\n" + "b" * 80 + "\nc\n")
    assert prompts == ["<u:a>", "<u:a><a:ok><u:c>"]
    err = capsys.readouterr().err
    assert "leaves no room" in err
    assert "forgotten" not in err


def test_options_that_no_turn_can_be_answered_with_end_the_command(monkeypatch, capsys) -> None:
    """Each turn was refused by the same line, and the exit code was 0."""

    def refuse(*_given: object, **_options: object) -> None:
        raise UsageError("the regular expression cannot be used")

    bundle = FakeBundle()
    monkeypatch.setattr(FakeLlm, "generate", refuse)
    give_stdin(monkeypatch, b"a\nb\n")
    assert main(CHAT, bundle.open) == 2
    assert capsys.readouterr().err.count("error: the regular expression cannot be used") == 1


def test_sampling_and_form_hold_for_every_turn(monkeypatch) -> None:
    bundle = FakeBundle(answer="ok", max_len=1000)
    talk(monkeypatch, bundle, "a\nb\n", "--temperature", "0.5", "--json-object", "--max-tokens=7")
    assert [(params.temperature, most) for _, params, most in bundle.requests] == [(0.5, 7)] * 2
    assert all(given["grammar"] is not None for given in bundle.given)


def test_a_bundle_without_a_template_is_refused(monkeypatch, capsys) -> None:
    give_stdin(monkeypatch, b"a\n")
    assert main(CHAT, FakeBundle(has_chat_template=False).open) == 2
    assert "no chat template; use generate" in capsys.readouterr().err


def test_a_line_that_is_no_text_is_told_by_its_number(monkeypatch, capsys) -> None:
    give_stdin(monkeypatch, b"a\n\xff\n")
    assert main(CHAT, FakeBundle().open) == 2
    assert "error: line 2 of stdin is not UTF-8" in capsys.readouterr().err


def test_a_terminal_is_asked_until_its_end(monkeypatch, capsys) -> None:
    answers = iter(["a", "b"])

    def typed(prompt: str) -> str:
        assert prompt == "> "
        try:
            return next(answers)
        except StopIteration:
            raise EOFError from None

    give_stdin(monkeypatch, b"")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", typed)
    bundle = FakeBundle(answer="ok", max_len=1000)
    assert main([*CHAT, "--quiet"], bundle.open) == 0
    assert len(bundle.requests) == 2
    assert capsys.readouterr().out == "ok\nok\n\n"


def test_ctrl_c_ends_the_answer_and_at_the_prompt_the_command() -> None:
    command = [sys.executable, "-m", "tests.runtime.cli.fake_llm", "hang", *CHAT]
    with subprocess.Popen(
        command,
        cwd=Path(__file__).parents[3],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        for _ in range(2):
            process.stdin.write(b"hello\n")
            process.stdin.flush()
            assert process.stdout.read(5) == b"first"
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == b"hang\n"
        while b"acceptance" not in process.stderr.readline():
            pass
        while b"acceptance" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        # Not `communicate`, which closes stdin: the end of the input would race with the signal.
        assert process.wait(DEADLINE_S) == 130
        err = process.stderr.read()
    assert err.endswith(b"close ar\ninterrupted\n")
