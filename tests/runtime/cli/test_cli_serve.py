"""``serve`` on the command line: what is wrong is said before a model is loaded."""

from __future__ import annotations

import argparse
import socket
from pathlib import Path
from typing import Any

import pytest

from runtime.cli import serve
from runtime.cli.entry import build_parser, main
from runtime.serve.config import KEY_VARIABLE, is_loopback


def refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("a model was loaded")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--port", "70000"], "70000"),
        (["--port", "-1"], "-1"),
        (["--host", "no.such.host.invalid"], "no.such.host.invalid"),
        (["--speculative-config", "{"], "JSON"),
        (["--speculative-config", '{"method": "eagle3"}'], "eagle3"),
        (["--speculative-config", '{"method": "ssd"}', "--mode", "sd"], "--mode"),
        (["--speculative-config", '{"num_branches": 2}', "--branches", "3"], "--branches"),
        (["--max-waiting", "-1"], "--max-waiting"),
        (["--api-key", "a\nb"], "API key"),
        (["--api-key", ""], "--api-key"),
        (["--protect-metrics"], "there is none"),
        (["--batch", "0"], "--batch"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_code_2(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["serve", "--bundle", "none", "--port", "0", *options]
    assert main(given, open_llm=refuse) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert words in line


def test_a_port_in_use_is_said_before_the_model_is_loaded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", "--bundle", "none", "--port", port], open_llm=refuse) == 2
    assert f"port {port}" in capsys.readouterr().err


def test_a_bundle_that_is_not_there_is_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--bundle", str(tmp_path / "no"), "--port", "0"]) == 2
    assert "error: " in capsys.readouterr().err


def parsed(*options: str) -> argparse.Namespace:
    return build_parser().parse_args(["serve", "--bundle", "a/demo", *options])


def test_the_key_comes_from_the_environment_and_the_option_wins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert serve._config_of(parsed()).api_key is None
    monkeypatch.setenv(KEY_VARIABLE, "from outside")
    assert serve._config_of(parsed()).api_key == "from outside"
    assert serve._config_of(parsed("--api-key", "given")).api_key == "given"
    monkeypatch.setenv(KEY_VARIABLE, "")
    with pytest.raises(serve.UsageError, match=KEY_VARIABLE):  # meant, and no key at all
        serve._config_of(parsed())


def test_options_become_limits_and_zero_is_no_limit() -> None:
    config = serve._config_of(parsed("--request-timeout", "0", "--max-body-mib", "2"))
    assert config.request_timeout_s is None
    assert config.max_body_bytes == 2 << 20
    assert config.model_name == "demo"


def test_the_json_opens_the_model_as_options_would() -> None:
    args = parsed("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}')
    serve._apply_speculative_config(args)
    assert (args.mode, args.drafter, args.num_draft) == ("sd", "lookup", 3)


def test_what_only_this_machine_can_reach_is_told_from_what_others_can() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "::1", "localhost", "127.9.9.9")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.com")))
