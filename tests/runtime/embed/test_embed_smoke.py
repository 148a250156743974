"""The library in programs of C, which check most by themselves, and in odd surroundings."""

from __future__ import annotations

import shutil
import site
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from runtime.llm import LLM
from runtime.sampling.params import SamplingParams
from tests.runtime.embed.c_programs import Run, compiled

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("program", ["refusals", "texts", "threads"])
def test_a_program_finds_nothing_wrong(program: str, library: Path, bundle: Path, run: Run) -> None:
    """The library finds its Python from any folder, without any environment, and is silent."""
    done = run(compiled(program, library), bundle)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("case", ["signals", "fork"])
def test_the_process_around_it_stays_as_it_is(
    case: str, process: Path, bundle: Path, run: Run
) -> None:
    done = run(process, case, bundle)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("attempt", range(4))
def test_a_process_may_end_with_a_text_in_the_middle(
    attempt: int, process: Path, bundle: Path, run: Run
) -> None:
    """Engines that ran on while their libraries were taken down crashed half of these."""
    assert run(process, "exit", bundle).stderr == "", attempt


def test_a_process_may_end_while_its_first_model_is_being_opened(
    process: Path,
    bundle: Path,
    run: Run,
    other_environment: Callable[[Sequence[Path]], Path],
    tmp_path: Path,
) -> None:
    """Nothing waited for it: ONNX Runtime went on in what its destructors had freed, and some of
    these processes crashed."""
    (tmp_path / "sitecustomize.py").write_text("import os; os.write(int(os.environ['TELL']), b'.')")
    packages = [Path(each) for each in site.getsitepackages()]
    prefix = other_environment([tmp_path, ROOT, *packages])
    assert run(process, "opening", bundle, SSD_TRT_PYTHON=str(prefix)).stderr == ""


def test_a_sanitizer_finds_nothing(library: Path, bundle: Path, run: Run) -> None:
    program = compiled("threads", library, ["-fsanitize=address"])
    # What Python keeps until the process ends is no leak of the library's.
    run(program, bundle, ASAN_OPTIONS="detect_leaks=0:exitcode=66")


@pytest.mark.parametrize("mode", ["ar", "ssd"])
def test_a_seed_gives_the_tokens_that_it_gives_in_python(
    mode: str, process: Path, bundle: Path, run: Run
) -> None:
    told = run(process, "tokens", bundle, f'{{"mode": "{mode}"}}').stdout.splitlines()
    with LLM.open(bundle, mode="ar") as llm:
        for index, temperature in enumerate((0.0, 0.8, 1.3)):
            params = SamplingParams(temperature, top_p=0.95, seed=11 + index)
            answer = llm.generate("the cat sat", params, max_tokens=48)
            assert told[index].split() == [str(each) for each in answer.token_ids]
    assert len({*told}) == 3


@pytest.mark.parametrize("file", ["manifest.json", "model.onnx"])
def test_a_bundle_without_its_draft_is_refused(
    file: str, process: Path, bundle: Path, run: Run, tmp_path: Path
) -> None:
    damaged = shutil.copytree(bundle, tmp_path / "damaged")
    (damaged / "draft" / file).unlink()
    told = run(process, "missing", damaged).stdout
    assert told.startswith("SSD_ERROR_BUNDLE_CORRUPT: ")
    assert "draft" in told


def test_another_environment_takes_the_place_of_the_own_one(
    process: Path,
    bundle: Path,
    run: Run,
    other_environment: Callable[[Sequence[Path]], Path],
    tmp_path: Path,
) -> None:
    packages = [Path(each) for each in site.getsitepackages()]
    prefix = other_environment([ROOT, *packages])
    for path in (prefix, prefix / "bin" / "python3"):
        run(process, "tokens", bundle, '{"mode": "ar"}', SSD_TRT_PYTHON=str(path))
    places = next(prefix.rglob("places.pth"))
    places.write_text("")
    told = run(process, "missing", bundle, SSD_TRT_PYTHON=str(prefix)).stdout
    assert told.startswith("SSD_ERROR_PYTHON: ssd-trt cannot be imported")
    assert str(prefix) in told

    embed = tmp_path / "fake" / "runtime" / "embed"
    embed.mkdir(parents=True)
    places.write_text("\n".join(map(str, (tmp_path / "fake", *packages))))
    (embed / "__init__.py").write_text("ABI_VERSION = 0")
    told = run(process, "missing", bundle, SSD_TRT_PYTHON=str(prefix)).stdout
    assert f"{embed / '__init__.py'} is of another version" in told
    # Of another length, or Python may take what it has compiled in this second for it.
    (embed / "__init__.py").write_text("ABI_VERSION = 1  # as it is")
    (embed / "bridge.py").write_text("raise ImportError('in\\ntwo lines')")
    done = run(process, "missing", bundle, SSD_TRT_PYTHON=str(prefix))
    assert "in two lines" in done.stdout
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


def test_a_python_that_is_not_there_is_refused(process: Path, bundle: Path, run: Run) -> None:
    done = run(process, "missing", bundle, SSD_TRT_PYTHON="/no/such/python")
    assert done.stdout.startswith("SSD_ERROR_PYTHON: there is no Python to run (/no/such/python)")
    assert done.stderr == ""


def test_variables_for_python_change_nothing(process: Path, bundle: Path, run: Run) -> None:
    """A host's PYTHONHOME or PYTHONPATH is for its own scripts."""
    odd = {"PYTHONHOME": "/no/such", "PYTHONPATH": "/no/such", "PYTHONSTARTUP": "/no/such"}
    run(process, "tokens", bundle, '{"mode": "ar"}', **odd, LC_ALL="C", HOME="/no/such")


def test_a_host_may_load_it_itself_let_go_and_load_two(
    host: Path, library: Path, bundle: Path, run: Run, tmp_path: Path
) -> None:
    """Python's own modules need its names to be global, which the host did not ask for."""
    original = library / "lib" / "libssd_trt.so"
    copy = shutil.copyfile(original, tmp_path / "libother.so")
    assert run(host, original, copy, bundle).stderr == ""
