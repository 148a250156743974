"""``compare``: its tables, notes, progress and streams, on terminals and elsewhere."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.cli.comparison import DRAFT_HEADERS, HEADERS
from runtime.cli.entry import main
from tests.runtime.cli.commands import COMPARE, run_json
from tests.runtime.cli.fake_llm import FakeBundle

ROOT = Path(__file__).parents[3]


def test_the_table_shows_each_mode_against_plain_decoding(
    prompts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMPARE, *prompts, "--quiet"], FakeBundle().open) == 0
    out, err = capsys.readouterr()
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[1].startswith("mode tokens/s speed-up acceptance length cache hit rate identical")
    assert lines[2:5] == [
        "ar 10.0 1.00x 1.00 - yes",
        "sd 20.0 2.00x 2.00 - yes",
        "ssd 40.0 4.00x 4.00 75% yes",
    ]
    assert lines[6].startswith(
        "drafting drafter fallback hits after a hit hits after a miss predicted"
    )
    assert lines[7].startswith("sd model - - - -")
    assert lines[8].startswith("ssd model jit - 75% -")
    shown = [*HEADERS[1:5], *DRAFT_HEADERS[3:]]
    for formula in (f"{name} = " for name in shown):
        assert sum(line.startswith(formula) for line in lines) == 1
    assert lines[-1].startswith("machine = ")
    assert err == ""


def test_auto_shows_which_modes_its_rounds_had(
    prompts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """It chooses anew as it runs, so no single mode was what ran."""
    bundle = FakeBundle(rounds={"ar": 3, "sd": 9}, note="auto runs sd K 2 (a trial went well)")
    arguments = [*COMPARE, *prompts, "--modes", "auto", "--quiet"]
    assert main(arguments, bundle.open) == 0
    shown = capsys.readouterr().out
    assert "auto (ar 25%, sd 75%)" in shown
    assert "auto: auto runs sd K 2 (a trial went well)" in shown


def test_plain_decoding_alone_has_no_table_of_drafts(
    prompts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMPARE, *prompts, "--modes", "ar", "--quiet"], FakeBundle().open) == 0
    assert "drafting" not in capsys.readouterr().out


def test_a_fallback_shows_in_the_table(
    prompts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = FakeBundle(ran={"ssd": "sd"}, note="one core only")
    assert main([*COMPARE, *prompts, "--quiet"], bundle.open) == 0
    out = capsys.readouterr().out
    assert "ssd (ran sd)" in out
    assert "\nssd: one core only\n" in out


def test_a_note_is_said_once(prompts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    bundle = FakeBundle(ran={"ssd": "sd"}, note="one core only")
    assert main([*COMPARE, *prompts, "--modes", "ssd"], bundle.open) == 0
    captured = capsys.readouterr()
    assert (captured.out + captured.err).count("ssd: one core only\n") == 1


def test_a_batch_explains_its_shared_seconds(
    prompts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each row's seconds are the device's: their sum was twice the clock's."""
    _, _, record = run_json(FakeBundle(), capsys, *prompts, "--batch", "2")
    for name in ("hidden_s", "exposed_s", "decode_s", "verify_s", "draft_s"):
        assert "not to be summed" in record["formulas"][name]
    assert main([*COMPARE, *prompts, "--batch", "2", "--quiet"], FakeBundle().open) == 0
    assert "in a batch: the device's milliseconds" in capsys.readouterr().out


def test_live_streams_the_first_prompts_and_leaves_json_alone(
    prompts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMPARE, *prompts, "--live", "--quiet"], FakeBundle().open) == 0
    assert "\n[ssd] two\nHello, world\n" in capsys.readouterr().out
    assert main([*COMPARE, *prompts, "--live", "--json"], FakeBundle().open) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)
    assert "\n[ssd] two\nHello, world\n" in err


def test_progress_is_plain_lines_where_there_is_no_terminal(
    prompts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMPARE, *prompts], FakeBundle().open) == 0
    err = capsys.readouterr().err.splitlines()
    assert err[:3] == [
        "ar: loading b",
        "ar: 1 of 2 (10.0 tokens/s)",
        "ar: 2 of 2 (10.0 tokens/s)",
    ]


def test_many_prompts_make_few_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.txt"
    file.write_text("x\n" * 200)
    assert main([*COMPARE, "--prompts", str(file), "--modes", "ar"], FakeBundle().open) == 0
    err = capsys.readouterr().err.splitlines()
    assert len(err) < 15
    assert err[-1].startswith("ar: 200 of 200")


def test_a_terminal_gets_a_ruled_table_and_a_bar(prompts: list[str]) -> None:
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "tests.runtime.cli.fake_llm", "Hello", *COMPARE, *prompts]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(
        command, cwd=ROOT, stdout=follower, stderr=follower, env=environment
    ) as process:
        os.close(follower)
        screen = b""
        # A terminal whose last writer is gone reads as an input/output error.
        while chunk := _read(leader):
            screen += chunk
    os.close(leader)
    assert process.returncode == 0
    text = re.sub(r"\x1b\[[?\d;]*[a-zA-Z]", "", screen.decode())
    assert "ssd ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 2/2 40.0 tokens/s" in text
    assert "┃ mode ┃ tokens/s ┃" in text


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:
        return b""


@pytest.mark.parametrize(("columns", "is_ruled"), [(20, False), (100, True)])
def test_a_narrow_terminal_loses_no_figure(columns: int, is_ruled: bool) -> None:
    """At 20 columns the ruled table was six empty cells."""
    script = (
        "from runtime.cli.report import table;"
        "print(table(('mode', 'cache hit rate'), [('ssd', '75%'), ('a long name', '50%')]))"
    )
    leader, follower = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
    subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, stdout=follower, env=environment, check=True
    )
    os.close(follower)
    shown = os.read(leader, 10_000).decode()
    os.close(leader)
    assert "a long name" in shown
    assert "75%" in shown
    assert ("┃" in shown) is is_ruled
