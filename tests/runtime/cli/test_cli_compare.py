"""``compare``: which runs it makes, what it calls identical, and its figures."""

from __future__ import annotations

import pytest

from runtime.cli.entry import main
from tests.helpers.tiny_bundle import tiny_bundle
from tests.runtime.cli.commands import COMPARE, run_json
from tests.runtime.cli.fake_llm import FakeBundle


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
