"""The command line over a real bundle of a tiny pair: what only all parts together can show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runtime.cli.entry import main
from tests.helpers.tiny_bundle import tiny_bundle

SAMPLED = ["--temperature", "4", "--seed", "1"]


def generate(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    bundle = str(tiny_bundle(tied=False).path)
    assert main(["generate", "--bundle", bundle, "--quiet", "--json", *arguments]) == 0
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    return record


@pytest.mark.parametrize("fallback", ["zero", "jit", "lookup"])
def test_log_probabilities_of_every_mode_are_plain_decodings(
    fallback: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """L1, L2, through to the JSON."""
    arguments = ["--prompt", "the cat", *SAMPLED, "--max-tokens", "10", "--logprobs", "3"]
    plain = generate(capsys, *arguments, "--mode", "ar")
    other = generate(capsys, *arguments, "--mode", "ssd", "--fallback", fallback)
    assert [len(each["top"]) for each in other["logprobs"]] == [3] * 10
    for ours, theirs in zip(other["logprobs"], plain["logprobs"], strict=True):
        assert (ours["token_id"], ours["rank"]) == (theirs["token_id"], theirs["rank"])
        assert ours["logprob"] == pytest.approx(theirs["logprob"], abs=1e-5)
    assert other["token_ids"] == [each["token_id"] for each in other["logprobs"]]


def test_a_stop_string_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """E7, through to the JSON; the second one occurs first."""
    whole = generate(capsys, "--prompt", "the cat", *SAMPLED, "--max-tokens", "40")
    text = whole["text"]
    stops = ["--stop", text[20:24], "--stop", text[9:12], "--logprobs", "0"]
    cut = generate(capsys, "--prompt", "the cat", *SAMPLED, "--max-tokens", "40", *stops)
    assert (cut["text"], cut["stop_reason"]) == (text[: text.index(text[9:12])], text[9:12])
    assert len(cut["token_ids"]) == len(cut["logprobs"]) == cut["num_tokens"]


def test_a_file_of_prompts_gives_each_prompts_own_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = ["the cat", "sat", "on the mat", "a", "b c"]
    file = tmp_path / "p.txt"
    file.write_text("\n".join(prompts))
    options = [*SAMPLED, "--max-tokens", "12", "--mode", "ssd"]
    together = generate(capsys, "--prompts", str(file), "--batch", "3", *options)
    alone = [generate(capsys, "--prompt", prompt, *options) for prompt in prompts]
    keys = ("text", "token_ids", "finish_reason")
    for ours, theirs in zip(together["answers"], alone, strict=True):
        assert [ours[key] for key in keys] == [theirs[key] for key in keys]


@pytest.mark.parametrize("mode", ["sd", "ssd"])
def test_a_trace_holds_both_lanes_and_every_round(
    mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "t.json"
    arguments = ["--prompt", "the cat", *SAMPLED, "--max-tokens", "20", "--mode", mode]
    record = generate(capsys, *arguments, "--trace", str(file))
    trace = json.loads(file.read_text())
    assert trace["otherData"]["mode"] == mode
    names = [(event["cat"], event["name"]) for event in trace["traceEvents"] if event["ph"] == "X"]
    # The host queues a round before it reads the last one: one more may have begun, for nobody.
    assert names.count(("target", "verify")) - record["num_rounds"] in (0, 1)
    num_drafting = names.count(("draft", "draft" if mode == "sd" else "prepare"))
    # Of these closing may have dropped what had not begun.
    assert record["num_rounds"] - num_drafting in (-1, 0, 1)
    moments = [event["name"] for event in trace["traceEvents"] if event["ph"] == "i"]
    if mode == "ssd":
        assert moments.count("hit") == record["num_hits"]
        assert len(moments) == record["num_rounds"] - 1
    else:
        assert moments == [], "there is nothing to hit or miss"
    assert main(["trace", str(file)]) == 0
    assert "drafting while the target verified" in capsys.readouterr().out


def test_compare_judges_mixed_batches_with_every_fallback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.txt"
    file.write_text("the cat\nsat\non the mat\na\nb c\n")
    common = ["compare", "--bundle", str(tiny_bundle(tied=False).path), "--prompts", str(file)]
    common += ["--no-chat", "--max-tokens", "20", "--batch", "3", "--temperature", "0,4"]
    for fallback in ("zero", "jit", "lookup"):
        trace = tmp_path / f"{fallback}.json"
        arguments = [*common, "--fallback", fallback, "--trace", str(trace), "--json", "--quiet"]
        assert main(arguments) == 0
        record = json.loads(capsys.readouterr().out)
        assert [mode["identical"] for mode in record["modes"]] == [True] * 3
        ssd = record["modes"][2]
        assert 0 <= ssd["predicted_hit_rate"] <= 1
        assert ssd["hit_rate_after_miss"] is not None
        file_of_ssd = json.loads(trace.with_stem(f"{fallback}-ssd").read_text())
        moments = [e["name"] for e in file_of_ssd["traceEvents"] if e["ph"] == "i"]
        known = sum(
            each["num_rounds_after_hit"] + each["num_rounds_after_miss"]
            for each in ssd["per_prompt"]
        )
        assert len(moments) == known, "the warm-up is in the trace"
        assert moments.count("hit") == sum(each["num_hits"] for each in ssd["per_prompt"])
        for mode in record["modes"]:
            assert mode["hidden_s"] + mode["exposed_s"] <= mode["wall_s"]
            assert mode["decode_s"] <= mode["wall_s"]
            assert {each["predicted_hit_rate"] for each in mode["per_prompt"]} == {None}
