"""polygraphy's own command line on a model with one of our nodes.

The package is made known to polygraphy as an installation would do it: by the entry points of
pyproject.toml, written where Python looks for installed packages.
"""

from __future__ import annotations

import os
import subprocess
import sysconfig
import tomllib
from pathlib import Path

import pytest

from plugins.verify.tensorrt import SIGNATURE as VERIFY
from tests.plugins.layer_models import verify_model

pytestmark = pytest.mark.rtx

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
GROUP = "polygraphy.run.plugins"
SHAPES = {
    "min": ["logits:[1,1,100]", "drafts:[1,0]", "num_draft:[1]"],
    "opt": ["logits:[2,5,100]", "drafts:[2,4]", "num_draft:[2]"],
    "max": ["logits:[4,9,100]", "drafts:[4,8]", "num_draft:[4]"],
}


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    points = PROJECT.get("entry-points", {}).get(GROUP, {})
    assert points, f"pyproject.toml names no entry point of the group {GROUP}"
    return install(tmp_path, points)


def install(path: Path, points: dict[str, str]) -> Path:
    """A folder for PYTHONPATH with the package's entry points; it hides an installed package."""
    info = path / "site" / f"ssd_trt-{PROJECT['version']}.dist-info"
    info.mkdir(parents=True)
    lines = [f"[{GROUP}]", *(f"{name} = {target}" for name, target in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    (info / "METADATA").write_text(f"Name: ssd-trt\nVersion: {PROJECT['version']}\n")
    return info.parent


def polygraphy(*arguments: str, site: Path, rtx: bool = True) -> str:
    """Run a command that must succeed; what it printed."""
    done = subprocess.run(
        [str(Path(sysconfig.get_path("scripts"), "polygraphy")), *arguments],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(site), str(ROOT))),
            "POLYGRAPHY_USE_TENSORRT_RTX": "1" if rtx else "0",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def convert(model: str, plan: Path, site: Path) -> bytes:
    shapes = [word for kind, sizes in SHAPES.items() for word in (f"--trt-{kind}-shapes", *sizes)]
    targets = ["--strongly-typed", "--compute-capabilities", "8.9", "12.0"]
    polygraphy(
        *("convert", model, "-o", str(plan), "--convert-to", "trt"), *targets, *shapes, site=site
    )
    return plan.read_bytes()


def test_convert_puts_our_layer_into_the_plan(tmp_path: Path, installed: Path) -> None:
    plan = convert(verify_model(tmp_path), tmp_path / "model.plan", installed)
    assert VERIFY.digest.encode() in plan


def test_convert_without_the_package_builds_the_function(tmp_path: Path) -> None:
    """What the entry point is there to prevent; polygraphy says nothing of it."""
    plan = convert(verify_model(tmp_path), tmp_path / "model.plan", install(tmp_path, {}))
    assert VERIFY.digest.encode() not in plan


def test_inspect_and_run_take_the_model(tmp_path: Path, installed: Path) -> None:
    model = verify_model(tmp_path)
    printed = polygraphy("inspect", "model", model, "--show", "layers", site=installed)
    assert "Verify" in printed
    shapes = ["--input-shapes", *SHAPES["opt"]]
    limits = ["--val-range", "drafts:[0,99]", "num_draft:[0,4]"]
    assert "PASSED" in polygraphy("run", model, "--onnxrt", *shapes, *limits, site=installed)


def test_where_tensorrt_is_absent_polygraphy_works_as_before(
    tmp_path: Path, installed: Path
) -> None:
    """The entry point is called at every start, also by those who build nothing."""
    printed = polygraphy("inspect", "model", verify_model(tmp_path), site=installed, rtx=False)
    assert "Failed to load plugin" not in printed
    assert "2 Graph Output(s)" in printed
