"""The CMake package: found from wherever its folder lies, by the versions that fit it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from runtime.embed.build import own_version
from tests.helpers.readme import EMBED_SECTION, README, readme_blocks, workspace
from tests.helpers.readme import run as run_script
from tests.runtime.embed.c_programs import Run
from tests.runtime.embed.cpp_programs import EXAMPLES, command

pytestmark = pytest.mark.cmake
CMAKE = EXAMPLES.parent / "cmake"
LINE = "cmake_minimum_required(VERSION 3.16)\n"


@pytest.fixture
def moved(library: Path, tmp_path: Path) -> Path:
    """The folder somewhere else, under a name that is no trouble to a person."""
    return shutil.copytree(library, tmp_path / "my progräms" / "ssd trt", symlinks=True)


def test_the_examples_build_and_run(moved: Path, bundle: Path, run: Run, tmp_path: Path) -> None:
    sources = moved / "share" / "ssd_trt" / "examples"
    build = tmp_path / "build"
    command("cmake", "-S", sources, "-B", build, "-D", f"CMAKE_PREFIX_PATH={moved}")
    command("cmake", "--build", build)
    for name, *arguments in (
        ("generate", "The rain", '{"mode": "sd"}'),
        ("threads", "The rain", "It is", "sd"),
    ):
        told = run(build / name, bundle, *arguments).stdout
        assert " tokens" in told
    assert run(build / "chat", bundle, "sd").stdout == ""  # nobody says anything


def test_the_project_of_the_readme_builds(library: Path, bundle: Path, tmp_path: Path) -> None:
    """By the command that stands there."""
    place = workspace(tmp_path, {"demo": bundle})
    (place / "build").mkdir()
    (place / "build" / "ssd").symlink_to(library)
    blocks = {block.language: block for block in readme_blocks() if block.section == EMBED_SECTION}
    (place / "story.cpp").write_text(blocks["cpp"].text)
    (place / "CMakeLists.txt").write_text(blocks["cmake"].text)
    shown = re.findall(r"`(cmake -S .*?)`", README.read_text("utf-8"))
    told = run_script(place, f"{shown[0]} && cmake --build build/story && build/story/story")
    assert re.search(r"\n[\d.]+ tokens a round\n$", told)


def test_a_project_in_c_alone_builds(moved: Path, bundle: Path, run: Run, tmp_path: Path) -> None:
    """It has no C++ standard that could be asked for."""
    shutil.copy(moved / "share" / "ssd_trt" / "examples" / "generate.c", tmp_path)
    (tmp_path / "CMakeLists.txt").write_text(
        f"{LINE}project(mine LANGUAGES C)\n"
        "find_package(ssd_trt CONFIG REQUIRED)\n"
        "find_package(ssd_trt CONFIG REQUIRED)\n"  # as two parts of a project may
        "add_executable(mine generate.c)\n"
        "target_link_libraries(mine PRIVATE ssd_trt::ssd_trt)\n"
    )
    build = tmp_path / "build"
    command("cmake", "-S", tmp_path, "-B", build, "-D", f"ssd_trt_DIR={moved}/lib/cmake/ssd_trt")
    command("cmake", "--build", build)
    assert run(build / "mine", bundle, "The rain", '{"mode": "ar"}').stdout


FITS = [
    ("0.1.0", "", True),
    ("0.1.0", "0.1", True),
    ("0.1.0", "0.1.0 EXACT", True),
    ("0.1.3", "0.1.3", True),
    ("0.1.3", "0.1", True),
    ("0.1.3", "0.1 EXACT", False),
    ("0.1.3", "0.1.4", False),
    ("0.2.0", "0.1", False),  # 0.x versions may break what was built for another one
    ("0.1.9", "0.2", False),
    ("0.10.0", "0.1", False),
    ("0.2.0", "0.1...0.3", True),
    ("0.3.0", "0.1...0.3", True),
    ("0.3.0", "0.1...<0.3", False),
    ("0.3.1", "0.1...0.3.0", False),
    ("0.1.0", "0.2...0.3", False),
    ("1.4.0", "1.2", True),
    ("1.4.0", "1", True),
    ("1.4.0", "1.5", False),
    ("1.4.0", "0.9", False),
    ("2.0.0", "1.4", False),
]
"""(version that is there, what is asked for, whether it fits)"""


def test_the_versions_that_fit_are_found(tmp_path: Path) -> None:
    template = (CMAKE / "ssd_trt-config-version.cmake.in").read_text("utf-8")
    script = LINE
    for index, (there, asked, _) in enumerate(FITS):
        folder = tmp_path / str(index)
        folder.mkdir()
        (folder / "ssd_trt-config.cmake").touch()
        version = template.replace("@VERSION@", there)
        (folder / "ssd_trt-config-version.cmake").write_text(version, "utf-8")
        script += (
            "unset(ssd_trt_DIR CACHE)\n"
            f"find_package(ssd_trt {asked} CONFIG QUIET PATHS {folder} NO_DEFAULT_PATH)\n"
            f'message(STATUS "{index} ${{ssd_trt_FOUND}}")\n'
        )
    (tmp_path / "all.cmake").write_text(script, "utf-8")
    told = [line.split() for line in command("cmake", "-P", tmp_path / "all.cmake").splitlines()]
    found = [answer == "1" for _, _, answer in told]
    assert [(*case[:2], fits) for case, fits in zip(FITS, found, strict=True)] == FITS


def find(library: Path, folder: Path, asked: str = "") -> subprocess.CompletedProcess[str]:
    """find_package in a project without any language."""
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text(
        f"{LINE}project(mine LANGUAGES NONE)\n"
        f"find_package(ssd_trt {asked} CONFIG REQUIRED)\n"
        'message(STATUS "found ${ssd_trt_VERSION}")\n'
    )
    words = ["cmake", "-S", folder, "-B", folder / "build", "-D", f"CMAKE_PREFIX_PATH={library}"]
    return subprocess.run(
        [*map(str, words)], capture_output=True, text=True, timeout=120, check=False
    )


def test_the_version_is_the_own_one(library: Path, tmp_path: Path) -> None:
    done = find(library, tmp_path / "own", own_version())
    assert done.returncode == 0, done.stderr
    assert f"found {own_version()}\n" in done.stdout
    done = find(library, tmp_path / "other", "999.0")
    assert done.returncode != 0
    assert f"version: {own_version()}" in done.stderr


def test_a_folder_that_lacks_the_library_says_so(moved: Path, tmp_path: Path) -> None:
    for library in (moved / "lib").glob("libssd_trt*"):
        library.unlink()
    done = find(moved, tmp_path / "project")
    assert done.returncode != 0
    told = " ".join(done.stderr.split())
    assert "lacks lib/libssd_trt.so.1" in told
    assert "python -m runtime embed" in told
