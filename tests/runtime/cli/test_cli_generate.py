"""``generate``: what it prints where, and what reaches the model."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from runtime.cli.answers import Run
from runtime.cli.entry import main
from runtime.grammar import Grammar
from runtime.llm import Completion
from runtime.sampling.params import SamplingParams
from tests.runtime.cli.commands import GENERATE
from tests.runtime.cli.fake_llm import SETTINGS, FakeBundle, stats

NO_OPTIONS = {
    "stop": [],
    "stop_token_ids": [],
    "min_tokens": 0,
    "ignore_eos": False,
    "bad_words": [],
    "grammar": None,
    "logprobs": None,
}


def test_text_goes_to_stdout_and_the_summary_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    bundle = FakeBundle()
    assert main([*GENERATE, "--mode", "ssd", "--prompt", "hi"], bundle.open) == 0
    out, err = capsys.readouterr()
    assert out == "Hello, world\n"
    assert err == (
        "ssd: 12 tokens, ended by the model; 40.0 tokens/s; acceptance length 4.00; "
        "cache hit rate 75%\n"
    )
    assert bundle.events == ["open ssd", "close ssd"]


def test_every_piece_is_flushed_when_it_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Block buffering makes a live stream arrive in one lump at the end."""

    class Screen(io.StringIO):
        shown = ""

        def flush(self) -> None:
            self.shown = self.getvalue()

    screen = Screen()
    monkeypatch.setattr("sys.stdout", screen)
    seen = []
    bundle = FakeBundle(answer="abc")

    def open_watched(*args: Any, **options: Any) -> Any:
        llm = bundle.open(*args, **options)
        inner = llm.generate

        def generate(*args: Any, on_text: Callable[[str], None], **options: Any) -> Any:
            def watched(piece: str) -> None:
                on_text(piece)
                seen.append(screen.shown)

            return inner(*args, on_text=watched, **options)

        llm.generate = generate
        return llm

    assert main([*GENERATE, "--prompt", "hi"], open_watched) == 0
    assert seen == ["a", "ab", "abc"]


def test_options_reach_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    bundle = FakeBundle()
    options = "--verify ratio --num-draft 3 --branches 5 --max-tokens 7 --temperature 0.5"
    options += " --top-k 9 --top-p 0.25 --seed 18446744073709551615 --chat --quiet --mode sd"
    options += " --min-p 0.125 --fallback jit --saguaro 0.5"
    options += " --stop x --stop \n --stop-token-ids 3 5 --min-tokens 2"
    assert main([*GENERATE, "--prompt", "hi", *options.split(" ")], bundle.open) == 0
    assert callable(bundle.opened[0].pop("announce"))
    assert bundle.opened == [
        {
            "bundle": Path("b"),
            "mode": "sd",
            "verify": "ratio",
            "num_draft": 3,
            "drafter": "auto",
            "branches": 5,
            "max_batch": 1,
            "fallback": "jit",
            "saguaro": 0.5,
            "adaptive_length": False,
            "backend": None,
            "device": None,
            "draft_sm_share": None,
            "tensor_parallel": 1,
            "prefix_reuse": True,
            "trace": False,
            "tell": None,
        }
    ]
    [(prompt, params, max_tokens)] = bundle.requests
    assert (prompt, max_tokens) == ("<hi>", 7)
    assert (params.temperature, params.top_k, params.top_p) == (0.5, 9, 0.25)
    assert (params.min_p, params.seed) == (0.125, 2**64 - 1)
    assert bundle.given == [
        {**NO_OPTIONS, "stop": ["x", "\n"], "stop_token_ids": [3, 5], "min_tokens": 2}
    ]
    assert capsys.readouterr() == ("Hello, \n", "")


def test_a_stop_token_id_is_left_to_the_model_however_large() -> None:
    """It was measured by the largest integer of this machine, as if that were the vocabulary."""
    bundle = FakeBundle()
    options = ["--prompt", "hi", "--quiet", "--stop-token-ids", str(2**63 - 1)]
    assert main([*GENERATE, *options], bundle.open) == 0
    assert bundle.given[0]["stop_token_ids"] == [2**63 - 1]


def test_without_options_nothing_but_the_model_and_the_budget_ends_the_answer() -> None:
    bundle = FakeBundle()
    assert main([*GENERATE, "--prompt", "hi", "--quiet"], bundle.open) == 0
    assert bundle.given == [NO_OPTIONS]
    [opened] = bundle.opened
    assert (opened["fallback"], opened["saguaro"]) == ("auto", 1.0)


def test_logprobs_are_one_object_a_token(capsys: pytest.CaptureFixture[str]) -> None:
    """L2's shape, and the text of each token beside its id."""
    arguments = [*GENERATE, "--prompt", "hi", "--max-tokens", "3", "--json", "--logprobs", "2"]
    assert main(arguments, FakeBundle().open) == 0
    first, *others = json.loads(capsys.readouterr().out)["logprobs"]
    assert len(others) == 2
    assert [first["token_id"], first["token"]] == [ord("H"), "H"]
    assert (first["logprob"], first["rank"]) == (-1.5, 2)
    assert [top["token"] for top in first["top"]] == ["a", "b"]
    assert math.isclose(first["top"][1]["logprob"], math.log(0.25), rel_tol=1e-6)


def write_prompts(folder: Path) -> list[str]:
    (folder / "p.txt").write_text("one\ntwo\n\nthree\n")
    return ["generate", "--bundle", "b", "--prompts", str(folder / "p.txt"), "--mode", "ssd"]


def test_answers_to_a_file_come_in_its_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last one is done first here."""
    bundle = FakeBundle(wrong={("ssd", "two"): "Second"})
    assert main([*write_prompts(tmp_path), "--batch", "2"], bundle.open) == 0
    out, err = capsys.readouterr()
    assert out == "[1] one\nHello, world\n\n[2] two\nSecond\n\n[3] three\nHello, world\n\n"
    assert err.startswith("ssd: 3 answers, 30 tokens in ")
    assert err.endswith("acceptance length 4.00; cache hit rate 75%\n")
    assert bundle.opened[0]["max_batch"] == 2
    assert "batch of 3" in bundle.events


def test_answers_to_a_file_are_one_object_of_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = FakeBundle()
    assert main([*write_prompts(tmp_path), "--json", "--seed", "4"], bundle.open) == 0
    out, err = capsys.readouterr()
    record = json.loads(out)
    assert set(record) == {
        *("mode", "note", "num_tokens", "wall_s", "tokens_per_second"),
        *("acceptance_length", "hit_rate", "rounds_by_mode", "settings", "answers", "formulas"),
    }
    assert (record["mode"], record["num_tokens"], len(record["answers"])) == ("ssd", 36, 3)
    assert math.isclose(record["tokens_per_second"], 36 / record["wall_s"])
    together, _, alone = record["formulas"]["tokens_per_second"].partition("; of one prompt: ")
    assert ("reading them included" in together, "the prompt left out" in alone) == (True, True)
    assert {answer["text"] for answer in record["answers"]} == {"Hello, world"}
    assert [params.seed for _, params, _ in bundle.requests] == [4, 4, 4]
    assert bundle.opened[0]["max_batch"] is None
    assert err.splitlines()[-1] == "answers: 3 of 3 (12 tokens)"


def test_json_is_one_object_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    bundle = FakeBundle(note="one core only: ssd runs as sd", ran={"ssd": "sd"})
    assert main([*GENERATE, "--mode", "ssd", "--prompt", "hi", "--json"], bundle.open) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["text"] == "Hello, world"
    assert record["token_ids"] == [ord(character) for character in "Hello, world"]
    assert record["finish_reason"] == "stop"
    assert (record["mode"], record["note"]) == ("sd", "one core only: ssd runs as sd")
    assert record["prompt_tokens"] == 2
    assert record["acceptance_length"] == 2.0
    assert record["hit_rate"] is None
    assert record["settings"] == {
        "device": "cpu",
        "verify": "coupled",
        "drafter": "model",
        "num_draft": 4,
        "max_batch": 1,
        **dict.fromkeys(("num_branches", "fallback", "saguaro")),
    }
    for name in ("num_hits", "num_jit", "num_lookup", "num_rounds_after_miss"):
        assert record[name] is None, "nothing was prepared"
    assert math.isclose(record["tokens_per_second"], 20.0)
    assert set(record["formulas"]) >= {"acceptance_length", "hit_rate", "tokens_per_second"}


def test_a_fallback_is_said_aloud(capsys: pytest.CaptureFixture[str]) -> None:
    """Speculation that is silently off is the fault users of other systems report most."""
    bundle = FakeBundle(note="one core only", ran={"ssd": "sd"})
    assert main([*GENERATE, "--mode", "ssd", "--prompt", "hi"], bundle.open) == 0
    err = capsys.readouterr().err
    assert "note: one core only\n" in err
    assert "\nsd: " in err


def test_help_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ([], ["generate"], ["compare"], ["doctor"], ["trace"]):
        assert main([*command, "--help"]) == 0
        out, err = capsys.readouterr()
        assert "examples:" in out
        assert err == ""


def test_auto_says_what_it_did_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    """Once, and last: it may have changed its mind since it was loaded."""
    bundle = FakeBundle(note="auto runs sd K 2 (a trial went well)", rounds={"ar": 3, "sd": 9})
    assert main([*GENERATE, "--prompt", "hi"], bundle.open) == 0
    line, note = capsys.readouterr().err.splitlines()
    assert line.startswith("auto: 12 tokens")
    assert line.endswith("; rounds ar 3, sd 9")
    assert note == "note: auto runs sd K 2 (a trial went well)"


def test_what_is_said_of_a_file_of_prompts_is_what_auto_ended_with() -> None:
    """The JSON had the note of the first answer, the line on the screen that of the last."""
    answers = tuple(
        Completion("", (1,), "length", "auto", note, 1, stats()) for note in ("sd, then", "ar, now")
    )
    run = Run(answers, SETTINGS, 2.0)
    assert run.as_record(cast("Any", None))["note"] == "ar, now"
    assert run.summary().endswith("\nnote: ar, now")


def test_modes_of_rounds_are_in_the_json_of_auto(capsys: pytest.CaptureFixture[str]) -> None:
    bundle = FakeBundle(rounds={"ar": 3, "sd": 9})
    assert main([*GENERATE, "--prompt", "hi", "--json"], bundle.open) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["rounds_by_mode"] == {"ar": 3, "sd": 9}
    assert record["settings"]["num_draft"] == 4
    assert record["settings"]["fallback"] is None  # chosen as it runs


def test_penalties_biases_and_what_the_answer_may_not_have_reach_the_model() -> None:
    bundle = FakeBundle()
    options = ["--repetition-penalty", "1.2", "--presence-penalty", "0.5"]
    options += ["--frequency-penalty", "-0.25", "--logit-bias", "7=-1.5", "--logit-bias", "3=2"]
    options += ["--ignore-eos", "--bad-words", "cat", "--bad-words", "dog"]
    assert main([*GENERATE, "--mode", "ar", "--prompt", "hi", *options], bundle.open) == 0
    [(_, params, _)] = bundle.requests
    assert params == SamplingParams(
        repetition_penalty=1.2,
        presence_penalty=0.5,
        frequency_penalty=-0.25,
        logit_bias={7: -1.5, 3: 2.0},
    )
    assert bundle.given == [{**NO_OPTIONS, "ignore_eos": True, "bad_words": ["cat", "dog"]}]


def test_the_form_of_the_answer_reaches_the_model(tmp_path: Path) -> None:
    schema, lark = tmp_path / "person.json", tmp_path / "sums.lark"
    schema.write_text('{"type": "object"}')
    lark.write_text('start: "a"')
    for options, grammar in (
        (["--json-schema", str(schema)], Grammar.json_object()),
        (["--json-object"], Grammar.json_object()),
        (["--regex", "a+"], Grammar.regex("a+")),
        (["--grammar", str(lark)], Grammar.lark('start: "a"')),
        (["--choice", "yes", "--choice", "no"], Grammar.choice(["yes", "no"])),
    ):
        bundle = FakeBundle()
        assert main([*GENERATE, "--mode", "ar", "--prompt", "hi", *options], bundle.open) == 0
        assert bundle.given == [{**NO_OPTIONS, "grammar": grammar}]


def test_several_answers_to_one_prompt_have_seeds_of_their_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bundle = FakeBundle(answer="word")
    options = ["--n", "3", "--seed", "5", "--temperature", "1", "--quiet"]
    assert main([*GENERATE, "--mode", "sd", "--prompt", "hi", *options], bundle.open) == 0
    assert [(prompt, params.seed) for prompt, params, _ in bundle.requests] == [
        ("hi", 5),
        ("hi", 6),
        ("hi", 7),
    ]
    out, _ = capsys.readouterr()
    assert out == "".join(f"[{i}] choice {i}\nword\n\n" for i in (1, 2, 3))
