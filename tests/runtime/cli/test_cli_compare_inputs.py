"""``compare``: where its prompts come from, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime.cli.entry import main
from tests.helpers.tiny_bundle import tiny_bundle
from tests.runtime.cli.commands import COMPARE, run_json
from tests.runtime.cli.fake_llm import FakeBundle


def test_a_batch_that_the_bundle_was_not_built_for_is_refused_before_loading(
    prompts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, path = FakeBundle(), str(tiny_bundle(max_batch=1).path)
    assert main(["compare", "--bundle", path, *prompts, "--batch", "4"], bundle.open) == 2
    assert capsys.readouterr().err.startswith("error: a batch of 4, this bundle was built for 1")
    assert bundle.events == []


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
