"""``generate``: what it prints where, and how every bad input ends."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from engines.errors import BundleCorruptError, UsageError
from runtime.cli.answers import Run
from runtime.cli.entry import main
from runtime.grammar import Grammar
from runtime.llm import Completion
from runtime.sampling.params import SamplingParams
from tests.runtime.cli.fake_llm import SETTINGS, FakeBundle, FakeLlm, stats

GENERATE = ["generate", "--bundle", "b"]
NO_OPTIONS = {
    "stop": [],
    "stop_token_ids": [],
    "min_tokens": 0,
    "ignore_eos": False,
    "bad_words": [],
    "grammar": None,
    "logprobs": None,
}


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


def test_help_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ([], ["generate"], ["compare"], ["doctor"], ["trace"]):
        assert main([*command, "--help"]) == 0
        out, err = capsys.readouterr()
        assert "examples:" in out
        assert err == ""


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


def test_several_answers_to_each_of_many_prompts_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.txt").write_text("one\ntwo\n")
    code = main([*GENERATE, "--prompts", str(tmp_path / "p.txt"), "--n", "2"], FakeBundle().open)
    assert "--n goes with --prompt" in failure(capsys, code)
