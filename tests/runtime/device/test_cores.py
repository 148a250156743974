"""Cores and quotas, read from made-up control group trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.errors import DeviceError
from runtime.device.cores import CoreSplit, available_cores, cpu_quota, split_cores


def write_tree(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        pytest.param("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5, id="v2 namespace root"),
        pytest.param("0::/\n", {"cpu.max": "max 100000\n"}, None, id="v2 without a limit"),
        pytest.param("0::/\n", {}, None, id="v2 root of the machine has no file"),
        pytest.param(
            "0::/pod/app\n",
            {"pod/app/cpu.max": "max 100000\n", "pod/cpu.max": "50000 100000\n"},
            0.5,
            id="v2 limit of a parent",
        ),
        pytest.param(
            "0::/pod/app\n",
            {"pod/app/cpu.max": "100000 100000\n", "pod/cpu.max": "400000 100000\n"},
            1.0,
            id="v2 the smallest counts",
        ),
        pytest.param(
            "4:memory:/x\n3:cpu,cpuacct:/docker/1\n",
            {
                "cpu/docker/1/cpu.cfs_quota_us": "300000\n",
                "cpu/docker/1/cpu.cfs_period_us": "100000\n",
            },
            3.0,
            id="v1",
        ),
        pytest.param(
            "3:cpu,cpuacct:/docker/1\n",
            {
                "cpu,cpuacct/cpu.cfs_quota_us": "25000\n",
                "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            0.25,
            id="v1 in a container, its own group at the root",
        ),
        pytest.param(
            "1:cpu:/\n",
            {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
            None,
            id="v1 without a limit",
        ),
        pytest.param(
            "2:cpuacct:/\n1:cpuset:/\n",
            {"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"},
            None,
            id="v1 the limit of a controller we are not under",
        ),
        pytest.param(
            "1:cpu:/\n0::/app\n",
            {
                "cpu/cpu.cfs_quota_us": "-1\n",
                "cpu/cpu.cfs_period_us": "100000\n",
                "unified/app/cpu.max": "200000 100000\n",
            },
            2.0,
            id="v2 beside v1",
        ),
    ],
)
def test_cpu_quota(
    tmp_path: Path, membership: str, files: dict[str, str], expected: float | None
) -> None:
    write_tree(tmp_path, {"membership": membership})
    write_tree(tmp_path / "cgroup", files)
    assert cpu_quota(tmp_path / "cgroup", tmp_path / "membership") == expected


def test_a_system_without_control_groups_has_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path, tmp_path / "absent") is None


def test_this_machine_can_be_asked() -> None:
    cores = available_cores()
    assert cores
    assert list(cores) == sorted(set(cores))
    quota = cpu_quota()
    assert quota is None or quota > 0


@pytest.mark.parametrize(
    ("cores", "expected"),
    [
        ([3], CoreSplit((3,), (3,), is_shared=True)),
        ([0, 1], CoreSplit((0,), (1,), is_shared=False)),
        ([6, 0, 2, 4, 2], CoreSplit((0, 2, 4), (6,), is_shared=False)),
    ],
)
def test_the_draft_gets_the_last_core(cores: list[int], expected: CoreSplit) -> None:
    assert split_cores(cores) == expected


def test_no_core_at_all_is_refused() -> None:
    with pytest.raises(DeviceError, match="at least one"):
        split_cores([])
