from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path

import pytest

import export.check.runners
from export.bench.measure import GAIN_FORMULA
from export.cli.entry import build_parser, main
from tests.helpers.tiny_bundle import tiny_bundle

pytestmark = pytest.mark.polygraphy
QUICK = ["--iterations", "2", "--warm-up", "1"]


def test_json_is_one_object_with_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    bundle = str(tiny_bundle().path)
    assert (
        main(["bench", bundle, *QUICK, "--length", "30", "--tokens", "4", "--json", "--quiet"]) == 0
    )
    out, err = capsys.readouterr()
    assert err == ""
    facts = json.loads(out)
    assert facts["backend"] == "onnxruntime"
    assert {"cpu", "cores", "system"} <= set(facts["machine"])
    assert facts["versions"]["polygraphy"]
    assert "p50_s" in facts["formulas"]["tokens_per_second"]
    step, verify, prompt = facts["engines"][0]["calls"]
    assert step["latency"].keys() == {"iterations", "mean_s", "min_s", "p50_s", "p90_s", "p99_s"}
    assert step["latency"]["iterations"] == 2
    assert step["tokens_per_second"] > 0
    assert verify["tokens_per_second"] is None
    assert (verify["tokens"], prompt["tokens"]) == (4, 64)
    gain = 4 * step["latency"]["p50_s"] / verify["latency"]["p50_s"]
    assert [engine["verify_gain"] for engine in facts["engines"]] == [pytest.approx(gain), None]
    assert "p50_s of a step" in facts["formulas"]["verify_gain"]
    words = shlex.split(facts["command"])
    assert words[:5] == ["python", "-m", "export", "bench", bundle]
    again = build_parser().parse_args(words[3:])
    assert (again.iterations, again.length, again.tokens, again.threads) == (2, 30, 4, None)


def test_people_get_the_command_the_machine_and_a_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bundle = str(tiny_bundle().path)
    assert main(["bench", bundle, *QUICK, "--role", "draft", "--threads", "1"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0] == (
        f"python -m export bench {bundle} --role draft --iterations 2 --warm-up 1 "
        "--batch 1 --threads 1"
    )
    assert "onnxruntime 1." in out
    assert "draft, 1 thread: ONNX Runtime, bound steps" in out
    assert "target" not in out
    kinds = [line.split()[0] for line in lines if line.startswith(("root", "branch", "prompt"))]
    assert kinds == ["root", "branch", "prompt"]
    headers = next(line for line in lines if "p50 ms" in line)
    for words in ("p90 ms", "p99 ms", "mean", "min", "tokens/s"):
        assert words in headers
    assert err.splitlines() == [f"draft {kind}: 2 times" for kind in kinds]
    assert "verify gain" not in out


def test_people_are_told_what_a_verification_gains(capsys: pytest.CaptureFixture[str]) -> None:
    bundle = str(tiny_bundle().path)
    assert main(["bench", bundle, *QUICK, "--role", "target", "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    [figure, formula] = [line for line in lines if line.startswith("verify gain")]
    assert float(figure.removeprefix("verify gain ")) > 0
    assert formula == f"verify gain = {GAIN_FORMULA}"


def test_a_terminal_sees_one_line_that_counts_and_goes_away(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert main(["bench", str(tiny_bundle().path), *QUICK, "--role", "draft"]) == 0
    shown = capsys.readouterr().err
    assert "\r\x1b[2Kdraft branch: 1 of 2" in shown
    assert shown.endswith("\r\x1b[2K")
    assert "\n" not in shown


def test_help_has_the_options_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--help"]) == 0
    text = capsys.readouterr().out
    for words in ("--warm-up", "--length", "python -m export bench engines/bundles/demo"):
        assert words in text


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["nowhere"], "--target NAME --out nowhere (with --draft NAME for a draft to time, too)"),
        ([""], "argument BUNDLE: '' names no place"),
        (["{bundle}", "--role", "teacher"], "invalid choice: 'teacher'"),
        (["{bundle}", "--iterations", "none"], "invalid int value: 'none'"),
        (["{bundle}", "--iterations", "0"], "--iterations is 0"),
        (["{bundle}", "--iterations", "nan"], "invalid int value: 'nan'"),
        (["{bundle}", "--length", "nan"], "invalid int value: 'nan'"),
        (["{bundle}", "--step", "root"], "unrecognized arguments: --step root"),
        (["{bundle}", "--length", "160"], "at most --length 159"),
        (["{bundle}", "--batch", "4"], "rebuild it with --max-batch 4"),
    ],
)
def test_what_cannot_be_timed_is_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str], argv: list[str], words: str
) -> None:
    named = [word.format(bundle=tiny_bundle().path) for word in argv]
    assert main(["bench", *named, "--quiet"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words in err


@pytest.mark.rtx
@pytest.mark.parametrize("damage", ["cut short", "one byte changed"])
def test_a_damaged_plan_is_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, damage: str
) -> None:
    from tests.helpers.compiled_bundle import compiled_bundle

    bundle = tmp_path / "b"
    shutil.copytree(compiled_bundle("fp16").path, bundle)
    plan = bundle / "target/engine.plan"
    content = plan.read_bytes()
    changed = content[:-1] if damage == "cut short" else content[:-1] + bytes([content[-1] ^ 1])
    plan.write_bytes(changed)
    assert main(["bench", str(bundle), "--quiet"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert str(plan) in err
    assert "rebuild: python -m export build" in err


@pytest.mark.rtx
def test_a_compiled_bundle_without_its_gpu_is_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.helpers.compiled_bundle import compiled_bundle

    monkeypatch.setattr(export.check.runners, "local_gpu", lambda: None)
    bundle: Path = compiled_bundle("fp16").path
    assert main(["bench", str(bundle), "--json", "--quiet"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert f"{bundle}: running its tensorrt-rtx plan needs an NVIDIA GPU" in err


def test_ctrl_c_while_a_call_is_timed_is_code_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_step: object) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr("export.bench.host.HostEngine.run", interrupted)
    assert main(["bench", str(tiny_bundle().path), *QUICK, "--quiet"]) == 130
    assert capsys.readouterr() == ("", "interrupted\n")
