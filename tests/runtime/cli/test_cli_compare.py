"""``compare``: which runs it makes, what it calls identical, and what it prints."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runtime.cli.comparison import DRAFT_HEADERS, HEADERS
from runtime.cli.entry import main
from tests.helpers.tiny_bundle import tiny_bundle
from tests.runtime.cli.fake_llm import FakeBundle

ROOT = Path(__file__).parents[3]
COMPARE = ["compare", "--bundle", "b"]


@pytest.fixture
def prompts(tmp_path: Path) -> list[str]:
    file = tmp_path / "prompts.txt"
    file.write_text("one\n\ntwo\n")
    return ["--prompts", str(file)]


def run_json(
    bundle: FakeBundle, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, dict[str, Any], dict[str, Any]]:
    code = main([*COMPARE, "--json", *arguments], bundle.open)
    record = json.loads(capsys.readouterr().out)
    return code, {mode["mode"]: mode for mode in record["modes"]}, record


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


def test_modes_run_one_after_another_after_a_warm_up(
    prompts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Two models open at once would share the cores and spoil each other's speed."""
    bundle = FakeBundle()
    code, modes, _ = run_json(bundle, capsys, *prompts, "--modes", "ssd,sd,ssd")
    assert code == 0
    assert list(modes) == ["ar", "ssd", "sd"]
    assert bundle.events == [f"{what} {mode}" for mode in modes for what in ("open", "close")]
    assert [prompt for prompt, _, _ in bundle.requests] == ["<one>", "<one>", "<two>"] * 3
    assert bundle.requests[0][2] < 128, "the warm-up is short"
    assert all(len(mode["per_prompt"]) == 2 for mode in modes.values()), "and is not counted"


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, ["ar", "sd", "ssd"]),
        ({"max_branches": 0}, ["ar", "sd"]),
        ({"num_draft": 0, "max_branches": 0}, ["ar"]),
    ],
)
def test_by_default_those_modes_run_that_the_bundle_was_built_for(
    limits: dict[str, int],
    expected: list[str],
    prompts: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """sd or ssd was refused when ar had run, for minutes."""
    built = str(tiny_bundle(**limits).path)
    _, modes, _ = run_json(FakeBundle(), capsys, *prompts, "--bundle", built)
    assert list(modes) == expected


def test_a_difference_is_named_and_is_exit_code_1(
    prompts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = FakeBundle(wrong={("ssd", "<two>"): "Hellish"})
    assert main([*COMPARE, *prompts, "--quiet"], bundle.open) == 1
    out = capsys.readouterr().out
    assert "no (1 of 2 differ)" in out
    assert "ssd differs first at prompt 2 (two), token 4: ar 111 'o', ssd 105 'i'" in out
    code, modes, _ = run_json(bundle, capsys, *prompts)
    assert code == 1
    assert [mode["identical"] for mode in modes.values()] == [True, True, False]
    assert modes["ssd"]["divergence"] == {"prompt": 1, "index": 4, "expected": 111, "found": 105}
    assert [each["identical"] for each in modes["ssd"]["per_prompt"]] == [True, False]


def test_an_answer_that_ends_early_is_a_difference(
    prompts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Equal up to the shorter one's end: a comparison by zip would call it identical."""
    bundle = FakeBundle(wrong={("sd", "<one>"): "Hello"})
    assert main([*COMPARE, *prompts, "--quiet"], bundle.open) == 1
    assert "token 5: ar 44 ',', sd has ended" in capsys.readouterr().out


@pytest.mark.parametrize(("temperature", "code", "verdict"), [("0.7", 0, None), ("0", 1, False)])
def test_ratio_is_not_judged_when_sampling(
    temperature: str,
    code: int,
    verdict: bool | None,
    prompts: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    bundle = FakeBundle(wrong={("sd", "<one>"): "Hi"})
    arguments = [*prompts, "--verify", "ratio", "--temperature", temperature]
    found, modes, _ = run_json(bundle, capsys, *arguments)
    assert found == code
    assert modes["ar"]["identical"] is True
    assert modes["sd"]["identical"] is verdict
    assert main([*COMPARE, *arguments, "--quiet"], bundle.open) == code
    assert ("n/a" in capsys.readouterr().out) == (verdict is None)


def test_json_has_the_machine_the_command_and_the_figures(
    prompts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = FakeBundle(rounds={"sd": 12})
    _, modes, record = run_json(bundle, capsys, *prompts, "--seed", "3")
    arguments = " ".join([*COMPARE, "--json", *prompts, "--seed", "3"])
    assert record["command"] == f"python -m runtime {arguments}"
    assert set(record["machine"]) == {"cpu", "cores", "quota"}
    assert modes["sd"] | {"per_prompt": None, "decode_s": None} == {
        "mode": "sd",
        "ran": "sd",
        "note": None,
        "tokens_per_second": 20.0,
        "median_tokens_per_second": 20.0,
        "speedup": 2.0,
        "acceptance_length": 2.0,
        "hit_rate": None,
        "hit_rate_after_hit": None,
        "hit_rate_after_miss": None,
        "predicted_hit_rate": None,
        "hidden_s": 0.0,
        "exposed_s": 0.0,
        "overhead_s": pytest.approx(0.7),
        "rounds_by_mode": {"sd": 24},
        "sources": {},
        "num_discarded": 0,
        "num_rounds": 24,
        "identical": True,
        "divergence": None,
        "num_tokens": 24,
        "decode_s": None,
        "wall_s": None,
        "per_prompt": None,
        "settings": {
            "device": "cpu",
            "verify": "coupled",
            "drafter": "model",
            "num_draft": 4,
            "num_branches": None,
            "max_batch": 1,
            "fallback": None,
            "saguaro": None,
        },
    }
    assert record["batch"] == 1


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


def test_temperatures_go_to_the_prompts_in_turn(
    prompts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """In a batch greedy and sampled rows then meet; ratio's are judged when all are greedy."""
    bundle = FakeBundle(wrong={("ssd", "<two>"): "Hellish"})
    arguments = [*prompts, "--batch", "2", "--temperature", "0,0.8", "--fallback", "lookup"]
    code, modes, record = run_json(bundle, capsys, *arguments)
    assert (code, record["batch"]) == (1, 2)
    assert modes["ssd"]["divergence"]["prompt"] == 1
    assert modes["ssd"]["wall_s"] > 0
    assert [law.temperature for _, law, _ in bundle.requests] == [0.0, 0.0, 0.8] * 3
    assert [opened["fallback"] for opened in bundle.opened] == ["auto", "auto", "lookup"]
    assert {opened["max_batch"] for opened in bundle.opened} == {2}
    assert run_json(bundle, capsys, *arguments, "--verify", "ratio")[0] == 0
    assert "all prompts together" in record["formulas"]["tokens_per_second"]


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


def test_each_mode_gets_the_options_that_it_has(
    prompts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A mode refuses what has no effect in it."""
    bundle = FakeBundle()
    options = ["--num-draft", "2", "--branches", "3", "--saguaro", "0.5", "--verify", "ratio"]
    run_json(bundle, capsys, *prompts, *options, "--modes", "sd,ssd,auto")
    keys = ("num_draft", "branches", "saguaro")
    found = [tuple(opened[key] for key in keys) for opened in bundle.opened]
    assert found == [(None, None, 1), (2, None, 1), (2, 3, 0.5), (2, 3, 0.5)]


def test_a_batch_that_the_bundle_was_not_built_for_is_refused_before_loading(
    prompts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, path = FakeBundle(), str(tiny_bundle(max_batch=1).path)
    assert main(["compare", "--bundle", path, *prompts, "--batch", "4"], bundle.open) == 2
    assert capsys.readouterr().err.startswith("error: a batch of 4, this bundle was built for 1")
    assert bundle.events == []


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


def test_the_built_in_prompts_are_chat_prompts(capsys: pytest.CaptureFixture[str]) -> None:
    bundle = FakeBundle(max_len=1000)
    _, modes, _ = run_json(bundle, capsys, "--modes", "ar")
    assert len(modes["ar"]["per_prompt"]) == 12
    assert len({prompt for prompt, _, _ in bundle.requests}) == 12
    assert all(prompt.startswith("<") for prompt, _, _ in bundle.requests)


@pytest.mark.parametrize(("has_template", "option"), [(False, "--live"), (True, "--no-chat")])
def test_prompts_are_taken_as_they_are_without_a_template(
    has_template: bool, option: str, prompts: list[str]
) -> None:
    bundle = FakeBundle(has_chat_template=has_template)
    assert main([*COMPARE, *prompts, option, "--quiet"], bundle.open) == 0
    assert bundle.requests[0][0] == "one"


def test_prompts_come_from_jsonl_in_three_forms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.jsonl"
    lines = [
        {"prompt": "a\u2028b"},
        {"turns": ["c", "d"]},
        {"question_id": 82, "category": "qa", "turns": ["e"]},
        {"prompt": "beyond the limit"},
    ]
    text = "\r\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    file.write_text(text, encoding="utf-8", newline="")
    bundle = FakeBundle()
    run_json(bundle, capsys, "--prompts", str(file), "--num-prompts", "3", "--modes", "ar")
    assert [prompt for prompt, _, _ in bundle.requests[1:]] == ["<a\u2028b>", "<c>", "<e>"]


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("p.txt", b"", "no prompt"),
        ("p.txt", b"\n \n", "no prompt"),
        ("p.txt", b"ok\n\xff\n", "not UTF-8"),
        ("p.csv", b"a", ".jsonl"),
        ("p.jsonl", b"{", "line 1 is not JSON"),
        ("p.jsonl", b'{"prompt": "a"}\n{"text": "a"}', "line 2"),
        ("p.jsonl", b'{"prompt": ""}', "line 1"),
        ("p.jsonl", b'{"turns": []}', "line 1"),
        ("p.jsonl", b"[1]", "line 1"),
        ("p.txt", None, "No such file"),
    ],
)
def test_a_bad_prompts_file_is_refused_before_loading(
    name: str,
    data: bytes | None,
    reason: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / name
    if data is not None:
        file.write_bytes(data)
    bundle = FakeBundle()
    assert main([*COMPARE, "--prompts", str(file)], bundle.open) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert reason in err
    assert bundle.events == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--modes sd,fast", "'fast'"),
        ("--modes=", "''"),
        ("--num-prompts 0", "--num-prompts"),
        ("--temperature nan", "temperature"),
        ("--temperature 0,-1", "temperature"),
        ("--temperature 0,", "--temperature"),
        ("--temperature=", "argument --temperature: '' is not a number, or several with commas"),
        ("--batch 0", "--batch"),
        ("--batch 2 --live", "--live"),
        ("--modes ar,sd --fallback jit", "--fallback has no effect in --modes ar,sd"),
        ("--modes ar --num-draft 2 --branches 2", "--num-draft, --branches has no effect"),
    ],
)
def test_bad_options_are_refused_before_loading(
    options: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = FakeBundle()
    assert main([*COMPARE, *options.split(" ")], bundle.open) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert reason in err
    assert bundle.events == []


def test_a_prompt_that_does_not_fit_is_named(
    prompts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = FakeBundle(max_len=5)
    assert main([*COMPARE, *prompts, "--quiet"], bundle.open) == 2
    assert capsys.readouterr().err.startswith("error: prompt 1 has 5 tokens; the bundle holds 5")
    assert bundle.events == ["open ar", "close ar"]


def test_a_deep_line_of_json_is_one_line_of_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.jsonl"
    file.write_bytes(b"[" * 100_000)
    assert main([*COMPARE, "--prompts", str(file)], FakeBundle().open) == 2
    assert "line 1 is not JSON" in capsys.readouterr().err


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
