"""The C++ wrapper: what it owns, throws and reads, and that a text is the one that Python gives."""

from __future__ import annotations

import inspect
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from runtime.grammar import Grammar
from runtime.llm import LLM
from runtime.request import read_options
from runtime.sampling.params import SamplingParams
from tests.runtime.embed.c_programs import Run
from tests.runtime.embed.cpp_programs import HERE, WARNINGS, cases, command, cpp_program

CASES = [
    name
    for source in ("owning", "reading")
    for name in re.findall(
        r"^CASE\((\w+)\)", (HERE / "cpp" / f"{source}.cpp").read_text("utf-8"), re.MULTILINE
    )
]
COMPILERS = [name for name in ("g++", "clang++") if shutil.which(name)]
NOT_IN_CPP = {"bundle", "trace", "on_round", "tell", "announce", "hardware"}
"""What LLM.open takes beside the options of a bundle."""
PROMPT = "The rain in"


@pytest.fixture(scope="module")
def broken(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """C4: a bundle whose draft engine is gone."""
    copy = shutil.copytree(bundle, tmp_path_factory.mktemp("broken") / "bundle")
    (copy / "draft" / "model.onnx").unlink()
    return copy


@pytest.fixture(scope="module")
def verdicts(
    library: Path, bundle: Path, broken: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """What the program of all cases said of each."""
    empty = tmp_path_factory.mktemp("empty")
    told = command(cases(library), bundle, broken, empty)
    lines = (line.partition(" ") for line in told.splitlines())
    return {name: verdict for name, _, verdict in lines}


@pytest.mark.parametrize("case", CASES)
def test_the_case_passes(case: str, verdicts: Mapping[str, str]) -> None:
    """Each is a function in cpp/; it fails, too, where it leaves a model or a request open."""
    assert verdicts[case] == "passed"


def test_no_case_is_left_out(verdicts: Mapping[str, str]) -> None:
    assert [*verdicts] == CASES
    assert len(CASES) >= 19


@pytest.mark.parametrize("how", ["static", "never-closed", "thread", "throw"])
def test_a_process_ends_with_models_open(how: str, library: Path, bundle: Path, run: Run) -> None:
    """C1, C3: a hang or a crash where static objects, or nobody at all, free them."""
    done = run(cpp_program(library, "endings"), how, bundle)
    assert (done.stdout, done.stderr) == ("ending\n", "")


@pytest.fixture(scope="module")
def answers(library: Path, bundle: Path) -> list[str]:
    """The defaults of OpenOptions, SamplingParams and Options, and a text an option."""
    return command(cpp_program(library, "answers"), bundle, "ssd").splitlines()


def test_the_structs_have_the_defaults_of_python(answers: list[str]) -> None:
    opening = {
        name: parameter.default
        for name, parameter in inspect.signature(LLM.open).parameters.items()
        if name not in NOT_IN_CPP
    }
    in_cpp, of_params, of_options = map(json.loads, answers[:3])
    assert {name: in_cpp.get(name) for name in opening} == opening
    assert in_cpp.keys() <= opening.keys()

    params = SamplingParams()
    assert of_params.pop("num_biases") == len(params.bias)
    assert of_params == {name: getattr(params, name) for name in of_params}
    assert len(of_params) == 8

    options = read_options(vocab_size=None)
    assert of_options.pop("num_stops") == len(
        options.stop + options.stop_token_ids + options.bad_words
    )
    assert of_options.pop("has_grammar") == (options.grammar is not None)
    of_options = {"logprobs": None, "cache_salt": None, **of_options}  # no value, no member
    assert of_options == {name: getattr(options, name) for name in of_options}


def test_each_option_gives_the_text_that_it_gives_in_python(
    answers: list[str], bundle: Path
) -> None:
    """One that got lost on the way would give another one's text."""
    with LLM.open(bundle, mode="ar") as llm:
        likely_end = {"logit_bias": {llm.eos_token_ids[0]: 20.0}}
        some_ids = [289, 72]  # the plain text has them
        asked: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
            "plain": ({}, {}),
            "temperature": ({"temperature": 0.0}, {}),
            "top_k": ({"top_k": 5}, {}),
            "top_p": ({"top_p": 0.3}, {}),
            "seed": ({"seed": 2**64 - 1}, {}),
            "min_p": ({"min_p": 0.4}, {}),
            "repetition_penalty": ({"repetition_penalty": 3.0}, {}),
            "presence_penalty": ({"presence_penalty": 4.0}, {}),
            "frequency_penalty": ({"frequency_penalty": -4.0}, {}),
            "logit_bias": ({"logit_bias": {40: 7.5, 41: -1e30}}, {}),
            "max_tokens": ({}, {"max_tokens": 7}),
            "eos": (likely_end, {}),
            "ignore_eos": (likely_end, {"ignore_eos": True}),
            "stop": ({}, {"stop": ["never", "e", "a", "t"]}),
            "stop_token_ids": ({}, {"stop_token_ids": some_ids}),
            "min_tokens": ({}, {"stop_token_ids": some_ids, "min_tokens": 25}),
            "bad_words": ({}, {"bad_words": ["never", "F"]}),
            "logprobs": ({}, {"logprobs": 2}),
            "grammar": ({}, {"grammar": Grammar.choice(["yes", "no"])}),
        }
        texts = {}
        for line, (name, (params, options)) in zip(answers[3:], asked.items(), strict=True):
            law = SamplingParams(**{"temperature": 1.5, "seed": 3, **params})
            limited: dict[str, Any] = {"max_tokens": 30, **options}
            expected = llm.generate(PROMPT, law, **limited)
            label, _, told = line.partition(" ")
            in_cpp = json.loads(told)
            assert label == name
            assert in_cpp["token_ids"] == [*expected.token_ids], name
            assert in_cpp["text"] == expected.text, name
            assert in_cpp["finish_reason"] == expected.finish_reason, name
            assert (in_cpp["logprobs"] is None) == (expected.logprobs is None), name
            texts[name] = expected.token_ids
    assert texts["logprobs"] == texts["plain"]
    assert len({*texts.values()}) == len(texts) - 1, "each option changes the text"


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("standard", ["c++17", "c++20"])
def test_the_header_is_clean_and_leaks_no_macro(
    compiler: str, standard: str, library: Path, tmp_path: Path
) -> None:
    """In a program that includes it twice, in two files."""
    flags = [f"-std={standard}", *WARNINGS, "-Wshadow", "-Wold-style-cast"]
    flags += [f"-I{library / 'include'}"]
    (tmp_path / "user.cpp").write_text("#include <ssd.hpp>\n#include <ssd.hpp>\nint main() {}\n")
    command(compiler, *flags, "-fsyntax-only", tmp_path / "user.cpp")
    if (compiler, standard) == ("g++", "c++17"):
        (tmp_path / "other.cpp").write_text("#include <ssd.hpp>\n")
        # Not linked with the library: what nobody calls asks for nothing.
        files = [tmp_path / "user.cpp", tmp_path / "other.cpp"]
        command(compiler, *flags, "-O1", *files, "-o", tmp_path / "user")


def test_the_header_brings_no_macros_but_its_own(library: Path, tmp_path: Path) -> None:
    source = (library / "include" / "ssd.hpp").read_text("utf-8")
    included = re.findall(r"^#include (<\w+>)", source, re.MULTILINE)
    for name in ("ssd_detail.hpp", "ssd_bodies.hpp"):
        text = (library / "include" / name).read_text("utf-8")
        included += re.findall(r"^#include (<\w+>)", text, re.MULTILINE)
    assert len(included) > 10

    def macros(lines: str) -> set[str]:
        (tmp_path / "some.cpp").write_text(lines)
        told = command("g++", f"-I{library / 'include'}", "-dM", "-E", tmp_path / "some.cpp")
        return set(re.findall(r"^#define (\w+)", told, re.MULTILINE))

    without = macros("".join(f"#include {name}\n" for name in [*included, "<stdint.h>"]))
    own = macros("#include <ssd.hpp>\n") - without
    assert own
    assert {name for name in own if not name.startswith("SSD_")} == set()
