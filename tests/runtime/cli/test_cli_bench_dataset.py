"""``python -m runtime bench --dataset``: contestants, files that it writes, what it refuses."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engines.errors import BackendError
from export.build.build import build
from export.build.options import BuildOptions
from runtime.bench.dataset.peers import toy
from runtime.bench.dataset.peers.registry import PEERS
from runtime.cli.entry import main
from runtime.device.cores import available_cores
from runtime.llm import LLM
from tests.helpers.checkpoints import make_llama
from tests.helpers.tiny_bundle import tiny_bundle

two_cores = pytest.mark.skipif(len(available_cores()) < 2, reason="ssd needs two cores")
RECORDS = [
    {"category": "qa", "turns": ["the cat", "why?"]},
    {"category": "rag", "prompt": "sat on"},
    {"category": "qa", "prompt": "the mat"},
    {"category": "qa", "prompt": "much too long " * 60},
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "set.jsonl"
    path.write_text("\n".join(map(json.dumps, RECORDS)))
    return path


def options(data: Path, *more: str) -> list[str]:
    bundle = str(tiny_bundle(tied=False).path)
    return ["bench", "--bundle", bundle, "--dataset", str(data), "--max-tokens", "12", *more]


def stopped_after(
    monkeypatch: pytest.MonkeyPatch,
    num_answers: int,
    cause: BaseException | type[BaseException] = KeyboardInterrupt,
) -> None:
    """``cause`` in the answer behind so many; those that warm up count."""
    generate, asked = LLM.generate, []

    def answer(llm: LLM, *arguments: Any, **named: Any) -> Any:
        asked.append(llm)
        if len(asked) > num_answers:
            raise cause
        return generate(llm, *arguments, **named)

    monkeypatch.setattr(LLM, "generate", answer)


@two_cores
def test_every_mode(capsys: pytest.CaptureFixture[str], data: Path) -> None:
    assert main(options(data, "--modes", "ssd,auto", "--repeats", "2", "--json")) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["kind"] == "dataset"
    figures = record["figures"]
    assert figures["lines_left_out"] == [4]
    categories = {each["name"]: each for each in figures["categories"]}
    assert list(categories) == ["qa", "rag", "overall"]
    assert [each["name"] for each in categories["qa"]["contestants"]] == ["ar", "ssd", "auto"]
    for each in categories["overall"]["contestants"]:
        assert each["num_tokens"] <= 36
        assert each["num_differing"] == 0
        assert each["ttft_ms"]["num"] == 6
        assert each["vllm"]["completed"] == 3
    assert categories["qa"]["contestants"][1]["ratio_interval"]["low"] > 0
    assert categories["rag"]["contestants"][1]["ratio_interval"] is None
    assert len(figures["prompts"]) == 18
    assert figures["bundle"]["num_draft"] == 4
    assert not figures["is_interrupted"]
    assert figures["descriptions"]["ar"].startswith("threads: target ")


@two_cores
def test_one_at_a_time(capsys: pytest.CaptureFixture[str], data: Path) -> None:
    assert main(options(data, "--modes", "ssd", "--limit", "1", "--quiet", "--reopen")) == 0
    out, err = capsys.readouterr()
    assert "ssd: identical tokens on every prompt" in out
    assert err == ""


def test_several_drafters_are_several_contestants(
    capsys: pytest.CaptureFixture[str], data: Path
) -> None:
    """K is fixed, who drafts is the difference; plain decoding runs once."""
    more = ("--modes", "sd", "--drafters", "model,lookup", "--num-draft", "3", "--json")
    assert main(options(data, *more)) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    total = {each["name"]: each for each in figures["categories"][-1]["contestants"]}
    assert list(total) == ["ar", "sd model", "sd lookup"]
    assert total["sd model"]["num_lookups"] == 0
    assert len(total["sd model"]["acceptance"]) == 3
    assert figures["bundle"]["num_draft"] == 3


def test_without_a_draft_there_is_no_ssd(
    capsys: pytest.CaptureFixture[str], data: Path, tmp_path: Path
) -> None:
    """Nobody asked for it, so it is no error that it cannot run."""
    make_llama(tmp_path / "target")
    target, out = str(tmp_path / "target"), tmp_path / "bundle"
    bundle = build(BuildOptions(target=target, out=out, precision="fp32", max_len=160)).bundle
    arguments = ["bench", "--bundle", str(bundle.path), "--dataset", str(data), "--json"]
    assert main([*arguments, "--limit", "1", "--max-tokens", "8"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    names = [each["name"] for each in figures["categories"][0]["contestants"]]
    assert names == ["ar", "sd", "auto"]
    assert figures["bundle"]["draft"] is None


@pytest.mark.parametrize(
    ("room", "expected"),
    [({"num_draft": 0}, ["ar", "auto"]), ({"max_branches": 0}, ["ar", "sd", "auto"])],
)
def test_modes_without_room_in_the_bundle_are_left_out_unless_asked_for(
    capsys: pytest.CaptureFixture[str], data: Path, room: dict[str, int], expected: list[str]
) -> None:
    """They were begun with, and refused when plain decoding had been loaded."""
    bundle = str(tiny_bundle(tied=False, **room).path)
    arguments = ["bench", "--bundle", bundle, "--dataset", str(data), "--max-tokens", "4"]
    assert main([*arguments, "--limit", "1", "--json"]) == 0
    categories = json.loads(capsys.readouterr().out)["figures"]["categories"]
    assert [each["name"] for each in categories[0]["contestants"]] == expected
    assert main([*arguments, "--modes", "ssd"]) == 2


def test_the_report_is_written_in_files(
    capsys: pytest.CaptureFixture[str], data: Path, tmp_path: Path
) -> None:
    """And what was there before is replaced in one step."""
    page, figures = tmp_path / "report.html", tmp_path / "figures.json"
    page.write_text("an older one")
    more = ("--modes", "sd", "--html", str(page), "--json", str(figures), "--quiet")
    assert main(options(data, *more)) == 0
    out, err = capsys.readouterr()
    assert "speed-up" in out
    assert err == ""
    assert json.loads(figures.read_text())["figures"]["dataset"] == "set.jsonl"
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        "figures.json",
        "report.html",
        "set.jsonl",
    ]


def test_a_peer_answers_beside_them(
    capsys: pytest.CaptureFixture[str], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tokens differ, which is reported and no failure."""
    monkeypatch.setitem(PEERS, "toy", toy.kind(320))
    more = ("--modes", "ar", "--peers", "toy", "--peer-model", str(data.parent))
    assert main(options(data, *more, "--json")) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    plain, peer = figures["categories"][-1]["contestants"]
    assert peer["is_peer"]
    assert peer["num_tokens"] == plain["num_tokens"]
    assert peer["num_differing"] > 0
    assert figures["descriptions"]["toy"].startswith("toy, ")
    assert main(options(data, *more, "--quiet")) == 0
    assert "other weights or rounding may differ" in capsys.readouterr().out


def test_ctrl_c_keeps_what_was_measured(
    capsys: pytest.CaptureFixture[str],
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped_after(monkeypatch, 2 + 3)
    page, figures = tmp_path / "report.html", tmp_path / "figures.json"
    more = ("--modes", "sd", "--html", str(page), "--json", str(figures))
    assert main(options(data, *more)) == 130
    out, err = capsys.readouterr()
    assert "interrupted after 3 of 6 answers" in out
    assert err.endswith("interrupted; what was measured until then is reported\n")
    record = json.loads(figures.read_text())["figures"]
    assert record["is_interrupted"]
    assert [each["line"] for each in record["prompts"]] == [1, 1]
    assert "interrupted after 3 of 6" in page.read_text()


def test_a_mode_that_fails_in_the_middle_keeps_what_was_measured(
    capsys: pytest.CaptureFixture[str], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_after(monkeypatch, 2 + 3, BackendError("out of memory"))
    figures = data.with_name("figures.json")
    assert main(options(data, "--modes", "sd", "--json", str(figures))) == 2
    out, err = capsys.readouterr()
    assert "ar failed: out of memory; after 3 of 6 answers" in out
    assert err.endswith("ar failed: out of memory; what was measured until then is reported\n")
    record = json.loads(figures.read_text())["figures"]
    assert record["failure"] == "ar failed: out of memory"
    assert [each["line"] for each in record["prompts"]] == [1, 1]


def test_a_mode_that_fails_at_once_is_an_error(
    capsys: pytest.CaptureFixture[str], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_after(monkeypatch, 2, BackendError("out of memory"))
    assert main(options(data, "--modes", "sd", "--quiet")) == 2
    assert capsys.readouterr() == ("", "error: out of memory\n")


def test_a_file_name_that_is_not_utf8_can_be_reported(data: Path) -> None:
    """The figures were lost after all the work."""
    odd = data.rename(data.with_name(os.fsdecode(b"\xff\x1b[31m.jsonl")))
    page, figures = odd.with_name("report.html"), odd.with_name("figures.json")
    more = ("--modes", "ar", "--limit", "1", "--html", str(page), "--json", str(figures))
    assert main(options(odd, *more, "--quiet")) == 0
    assert json.loads(figures.read_text())["figures"]["dataset"] == odd.name
    assert page.exists()


def test_a_data_set_that_links_to_itself_is_an_error(refused, data: Path) -> None:
    loop = data.with_name("loop.jsonl")
    loop.symlink_to(loop.name)
    assert "cannot read --dataset" in refused(options(loop))


@pytest.mark.parametrize("num_answers", [1, 3])
def test_ctrl_c_before_anything_was_measured(
    capsys: pytest.CaptureFixture[str],
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    num_answers: int,
) -> None:
    """While it loads, and when only one contestant has answered."""
    stopped_after(monkeypatch, num_answers)
    page = tmp_path / "report.html"
    assert main(options(data, "--modes", "sd", "--html", str(page), "--quiet")) == 130
    assert capsys.readouterr() == ("", "interrupted\n")
    assert not page.exists()


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[[list[str]], str]:
    """The one line of a command that loads nothing."""

    def load(*_arguments: object, **_options: object) -> LLM:
        pytest.fail("a mode was loaded")

    def run(arguments: list[str]) -> str:
        assert main(arguments, open_llm=load) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        return err

    return run


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (["--num-draft", "5"], "K (num_draft) = 5 is above the built limit 4"),
        (["--branches", "7"], "W (branches) = 7 is above the built limit 6"),
        (["--branches", "7", "--modes", "sd"], "W (branches) = 7"),
        (["--modes", "ssd,hm"], "'hm' is no mode"),
        (["--drafters", "both,me"], "'me' is no drafter (choose from auto, model, lookup, both)"),
        (["--prompts", "y"], "--prompts has no effect with --dataset"),
        (["--limit", "0"], "'0' is not a whole number >= 1"),
        (["--repeats", "0"], "'0' is not a whole number >= 1"),
        (["--html", "report.txt"], "'report.txt' is no file named .html"),
        (["--html", "absent/report.html"], "its folder is missing or not writable"),
        (["--json", "absent/figures.json"], "its folder is missing or not writable"),
        (["--peers", "llama.cpp,vllm"], "'vllm' is no peer (choose from llama.cpp, transformers)"),
        (["--modes", "ar", "--drafters", "model,both"], "--drafters has no effect on ar"),
        (["--peers", ""], "'' is no peer"),
        (["--peers", "llama.cpp", "--peer-model", "~no-such-user/x.gguf"], "is not there"),
        (["--peers", "llama.cpp", "--peer-model", "a" * 400], "is not there"),
        (["--peer-model", "x.gguf"], "--peer-model goes with --peers"),
        (["--peer-quantisation", "q8_0"], "--peer-quantisation goes with --peers"),
        (["--peers", "llama.cpp", "--temperature", "1"], "peers answer greedily"),
        (["--peers", "transformers", "--peer-quantisation", "q8_0"], "is llama.cpp's"),
        (["--peers", "llama.cpp", "--peer-model", "absent.gguf"], "absent.gguf is not there"),
        (["--peers", "llama.cpp", "--peer-model", "."], "llama.cpp does not read ."),
    ],
)
def test_refused_before_anything_is_loaded(refused, data: Path, more, expected: str) -> None:
    """Each mode was opened in turn, and the last of them found out."""
    assert expected in refused(options(data, *more))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"prompt": "a"', "line 1 is not JSON"),
        ('{"prompt": "a"}\n{"turns": []}', "line 2 has no text"),
        ('{"prompt": "a", "category": ""}', "line 1: category is ''"),
        ("\n\n", "holds no prompt"),
    ],
)
def test_a_damaged_data_set_leaves_nothing_behind(refused, data: Path, text, expected) -> None:
    data.write_text(text)
    page = data.with_name("report.html")
    assert expected in refused(options(data, "--html", str(page)))
    assert not page.exists()


def test_neither_a_folder_nor_the_data_set_is_replaced(refused, data: Path) -> None:
    before = data.read_bytes()
    link = data.with_name("report.html")
    link.symlink_to(data)
    assert "would replace what is read" in refused(options(data, "--html", str(link)))
    assert data.read_bytes() == before
    folder = data.with_name("folder.html")
    folder.mkdir()
    assert "it is no regular file" in refused(options(data, "--html", str(folder)))


def test_a_peer_that_is_not_installed_names_the_command(
    refused, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    weights = data.with_name("model.gguf")
    weights.touch()
    for peer, package in (("llama.cpp", "llama-cpp-python"), ("transformers", "torch")):
        line = refused(options(data, "--peers", peer, "--peer-model", str(weights)))
        assert f"--peers {peer} needs the package {package}" in line
        assert "pip install 'ssd-trt[peers]'" in line


def test_html_is_of_a_data_set_only(refused) -> None:
    line = refused(["bench", "--replay", "budgets", "--html", "report.html"])
    assert "--html has no effect with --replay" in line
