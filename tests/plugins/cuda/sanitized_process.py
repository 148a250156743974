"""Run kernels under ThreadSanitizer; the process was started with its library.

python sanitized_process.py kernel NAME ...     trials of registered kernels, and of `probe`
python sanitized_process.py faulty ENTRY ...    entries of faulty.cu
"""

from __future__ import annotations

import sys

import numpy as np

from plugins.cuda import host, registry
from plugins.cuda.kernel import host_values, wrong_outputs
from tests.helpers import probe_kernel

MAX_BYTES = 400_000
"""Larger trials take the sanitizer too long, and show nothing that smaller ones do not."""


def run_kernel(name: str) -> None:
    kernel = probe_kernel.KERNEL if name == "probe" else registry.kernel(name)
    compiled = host.load(kernel.source, kernel.args, sanitize=True)
    trials = [each for each in kernel.trials if each.num_bytes <= MAX_BYTES] or kernel.trials[:1]
    for trial in trials:
        case = trial.make(np.random.default_rng(1))
        for num_threads, num_concurrent in ((8, 1), (3, 4)):
            values, arrays = host_values(case)
            for entry in trial.entries:
                compiled.launch(
                    entry,
                    values,
                    num_blocks=trial.num_blocks,
                    num_threads=num_threads,
                    num_concurrent=num_concurrent,
                )
            if errors := wrong_outputs(case, arrays):
                sys.exit(f"{name} {trial.label}: {errors[0]}")
        print(f"{name} {trial.label}: {trial.num_blocks} blocks")  # noqa: T201


def run_faulty(entry: str) -> None:
    compiled = host.load(probe_kernel.FAULTY, probe_kernel.FAULTY_ARGS, sanitize=True)
    out = np.zeros(8, np.int32)
    compiled.launch(entry, {"out": out}, num_blocks=4, num_threads=8, num_concurrent=4)


if __name__ == "__main__":
    what, *names = sys.argv[1:]
    for each in names:
        {"kernel": run_kernel, "faulty": run_faulty}[what](each)
