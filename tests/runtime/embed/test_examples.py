"""The examples in C and C++ compile without a warning, are short, and say what Python says."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from runtime.llm import LLM
from runtime.sampling.params import SamplingParams
from tests.runtime.embed.c_programs import Run
from tests.runtime.embed.cpp_programs import EXAMPLES, examples

PROMPTS = ("The rain", "It is late, and")


@pytest.fixture(scope="module")
def llm(bundle: Path) -> Iterator[LLM]:
    with LLM.open(bundle, mode="ar") as llm:
        yield llm


def test_generate_streams_a_text(library: Path, bundle: Path, run: Run, llm: LLM) -> None:
    told = run(examples(library) / "generate", bundle, PROMPTS[0], '{"mode": "ssd"}').stdout
    expected = llm.generate(PROMPTS[0], SamplingParams(0.8, seed=7), max_tokens=40)
    assert told.startswith(expected.text + f"\n{len(expected.token_ids)} tokens in ")
    assert re.search(r" in \d+ rounds, [\d.]+ tokens/s\n$", told)


def test_chat_remembers_what_was_said(library: Path, bundle: Path, llm: LLM) -> None:
    lines = ["Hi.", "And you?"]
    told = subprocess.run(
        [examples(library) / "chat", bundle, "ssd"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    messages: list[dict[str, str]] = []
    expected = ""
    for line in lines:
        messages.append({"role": "user", "content": line})
        answer = llm.chat(messages, SamplingParams(0.7, seed=1), max_tokens=60)
        messages.append({"role": "assistant", "content": answer.text})
        ended = f"{len(answer.token_ids)} tokens, ended by {answer.finish_reason}"
        expected += f"{answer.text}\n[{ended}]\n"
    assert told == expected


def test_two_threads_share_a_model(library: Path, bundle: Path, run: Run, llm: LLM) -> None:
    told = run(examples(library) / "threads", bundle, *PROMPTS, "ssd").stdout
    places = []
    for prompt in PROMPTS:
        answer = llm.generate(prompt, max_tokens=40)
        places.append(told.index(f"{prompt}{answer.text}\n[{len(answer.token_ids)} tokens, "))
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("name", "prompts"), [("generate", PROMPTS[:1]), ("chat", ()), ("threads", PROMPTS)]
)
def test_an_example_says_what_is_wrong(
    name: str, prompts: Sequence[str], library: Path, run: Run, tmp_path: Path
) -> None:
    """No crash, no trace: a line and an exit code."""
    program = examples(library) / name
    assert run(program, code=2).stderr.startswith(f"usage: {name} BUNDLE")
    told = run(program, tmp_path / "nothing", *prompts, code=1).stderr
    assert told.startswith("error: ")
    assert str(tmp_path / "nothing") in told
    assert told.count("\n") == 1


def test_an_example_is_a_page() -> None:
    sources = [path for path in EXAMPLES.iterdir() if path.suffix in (".c", ".cpp")]
    listed = (EXAMPLES / "CMakeLists.txt").read_text("utf-8")
    assert len(sources) >= 3
    for path in sources:
        assert len(path.read_text("utf-8").splitlines()) < 80, path
        assert path.name in listed, f"{path.name} is not built by CMakeLists.txt"
