"""What this machine has, and what it can therefore build and run."""

from runtime.doctor.backends import Backend
from runtime.doctor.checkup import (
    Checkup,
    CpuFlags,
    CpuKernels,
    Gpu,
    Machine,
    Memory,
    Nvidia,
    examine,
    machine,
)
from runtime.doctor.packages import Package

__all__ = [
    "Backend",
    "Checkup",
    "CpuFlags",
    "CpuKernels",
    "Gpu",
    "Machine",
    "Memory",
    "Nvidia",
    "Package",
    "examine",
    "machine",
]
