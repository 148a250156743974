"""``python -m plugins.cuda``, the registry, and what a wheel holds of the kernels."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from engines.errors import BackendError, UsageError
from plugins.cuda import __main__ as command
from plugins.cuda import host, registry
from plugins.cuda.args import Args
from plugins.cuda.compiler import KernelImage
from plugins.cuda.kernel import H200_BYTES_PER_S, Kernel, Trial, host_values, wrong_outputs
from plugins.cuda.report import EntryReport

ROOT = Path(__file__).parents[3]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str]]:
    """A compiler that notes what it is asked for."""
    asked = []

    def compile_kernel(kernel, capability, *, compiler):
        asked.append((kernel.name, capability, compiler))
        entries = tuple(EntryReport(name, 40, 16, 132) for name in kernel.entries)
        return KernelImage(kernel.name, capability, b"", entries)

    monkeypatch.setattr(command, "compile_kernel", compile_kernel)
    return asked


def test_the_table_has_every_use_of_every_kernel(compiled, capsys) -> None:
    assert command.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + sum(len(each.trials) for each in registry.kernels())
    assert {name for name, _, _ in compiled} == set(registry.NAMES)
    assert {(arch, compiler) for _, arch, compiler in compiled} == {("9.0", "nvrtc")}


def test_json_has_the_figures_and_the_options_are_heard(compiled, capsys) -> None:
    argv = ["lookup", "--json", "--arch", "8.0", "12.0", "--compiler", "nvcc"]
    assert command.main(argv) == 0
    lines = json.loads(capsys.readouterr().out)
    assert compiled == [("lookup", "8.0", "nvcc"), ("lookup", "12.0", "nvcc")]
    assert {line["capability"] for line in lines} == {"8.0", "12.0"}
    for line, trial in zip(lines, registry.kernel("lookup").trials * 2, strict=True):
        assert line["label"] == trial.label
        assert line["num_bytes"] == trial.num_bytes
        assert line["floor_s"] == trial.num_bytes / 4.8e12
        assert (line["registers"], line["spill_bytes"], line["shared_bytes"]) == (40, 16, 132)


def test_an_error_is_one_line_and_exit_code_2(monkeypatch, capsys) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BackendError("no\nway")

    assert command.main(["typo"]) == 2
    assert "no kernel 'typo'; there are verify, " in capsys.readouterr().err
    monkeypatch.setattr(command, "compile_kernel", refuse)
    assert command.main(["lookup"]) == 2
    assert capsys.readouterr().err == "error: no way\n"


def test_it_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "plugins.cuda", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--arch" in done.stdout
    assert "exit code: 0; 2 for an error" in done.stdout


def test_a_use_of_several_entries_has_the_largest_figures() -> None:
    """Registers and spills of the worst of them, not of the last."""
    trial = Trial("both", "last", 1, 32, 48, make=lambda _: None, first=("first",))
    kernel = Kernel("two", Path("two.cu"), Args(), ("first", "last"), (trial,))
    reports = EntryReport("first", 99, 0, 7), EntryReport("last", 40, 16, 132)
    [line] = command.table_lines(kernel, KernelImage("two", "9.0", b"", reports))
    assert line.entries == ("first", "last")
    assert (line.registers, line.spill_bytes, line.shared_bytes) == (99, 16, 132)


def test_a_trial_of_an_unknown_entry_is_refused() -> None:
    kernel = registry.kernel("lookup")
    with pytest.raises(UsageError, match="ssd_lookup"):
        command.table_lines(kernel, KernelImage("lookup", "9.0", b"", ()))


def test_the_yardstick_is_that_of_an_h200() -> None:
    assert H200_BYTES_PER_S == 4.8e12


def test_every_kernel_source_is_registered() -> None:
    """One that is not would be compiled by nobody."""
    sources = {each.source.resolve() for each in registry.kernels()}
    assert sources == set((ROOT / "plugins").resolve().glob("*/*.cu"))


def test_kernel_sources_are_in_the_wheel() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        patterns = tomllib.load(file)["tool"]["setuptools"]["package-data"]["plugins"]
    packed = {path for pattern in patterns for path in (ROOT / "plugins").glob(pattern)}
    sources = {path for path in (ROOT / "plugins").rglob("*") if path.suffix in (".cu", ".cuh")}
    assert sources
    assert sources <= packed


@pytest.mark.parametrize("name", registry.NAMES)
def test_the_first_trial_is_right_on_the_host(name: str, load_host) -> None:
    """What the GPU script checks on a GPU, here on threads."""
    kernel = registry.kernel(name)
    compiled: host.HostKernel = load_host(kernel.source, kernel.args)
    trial = kernel.trials[0]
    case = trial.make(np.random.default_rng(3))
    assert case.expected, "a trial without an answer checks nothing"
    values, arrays = host_values(case)
    for entry in trial.entries:
        compiled.launch(entry, values, num_blocks=trial.num_blocks, num_threads=8)
    assert wrong_outputs(case, arrays) == []
    assert trial.num_threads % 32 == 0
    assert trial.num_bytes > 0
