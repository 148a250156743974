"""``serve --ray`` on the command line: what does not go together is said before Ray starts."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.cli import serve
from runtime.cli.entry import build_parser, main
from runtime.cli.serve_ray import options_of
from runtime.serve.config import KEY_VARIABLE


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--replicas", "2"], "--replicas goes with --ray"),
        (["--ray-address", "auto"], "--ray-address goes with --ray"),
        (["--upscale-delay", "3"], "--upscale-delay goes with --ray"),
        (["--no-sticky"], "--no-sticky goes with --ray"),
        (["--ray", "--no-page"], "--no-page"),
        (["--ray", "--verbose"], "--verbose"),
        (["--ray", "--tensor-parallel", "2"], "--tensor-parallel"),
        (["--ray", "--ray-address", "ray://host:1"], "Ray Client"),
        (["--ray", "--replicas", "0"], "--replicas"),
        (["--ray", "--cpus-per-replica", "nan"], "--cpus-per-replica"),
        (["--ray", "--target-ongoing-requests", "0"], "--target-ongoing-requests"),
        (["--ray", "--min-replicas", "2"], "--min-replicas and --max-replicas"),
        (["--ray", "--min-replicas", "3", "--max-replicas", "2"], "--max-replicas is 2"),
        (
            ["--ray", "--replicas", "2", "--min-replicas", "1", "--max-replicas", "2"],
            "--replicas is a fixed number",
        ),
    ],
)
def test_an_option_that_does_not_fit_is_one_line_and_exit_code_2(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--bundle", "none", "--port", "0", *options]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert words in line


def options(*given: str) -> Any:
    args = build_parser().parse_args(["serve", "--ray", "--bundle", "a/demo", *given])
    return options_of(args, serve._config_of(args))


def test_options_of_one_server_hold_for_each_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "secret")
    found = options(
        *("--mode", "sd", "--num-draft", "2", "--batch", "3", "--device", "cpu"),
        *("--max-waiting", "5", "--drain-timeout", "7", "--request-timeout", "0"),
        *("--allow-origin", "*", "--served-model-name", "m", "--no-prefix-reuse"),
    )
    engine = found.engine_options()
    assert (engine["mode"], engine["num_draft"], engine["max_batch"]) == ("sd", 2, 3)
    assert (engine["device"], engine["prefix_reuse"]) == ("cpu", False)
    config = found.serve_config()
    assert (config.max_waiting, config.drain_timeout_s, config.request_timeout_s) == (5, 7, None)
    assert (config.api_key, config.model_name, config.allowed_origins) == ("secret", "m", ("*",))


def test_replicas_and_their_scaling_are_handed_on() -> None:
    found = options("--min-replicas", "1", "--max-replicas", "4", "--upscale-delay", "0.5")
    assert (found.min_replicas, found.max_replicas, found.upscale_delay_s) == (1, 4, 0.5)
    assert found.downscale_delay_s == 600
    assert options().most_replicas == 1
    assert not options("--no-sticky").sticky
