"""The README as blocks to run: what is shown there must work as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
POLYGRAPHY_SECTION = "TensorRT and polygraphy"
SERVE_SECTION = "Serve"
RAY_SECTION = "Many replicas with Ray Serve"
EMBED_SECTION = "Embed in C and C++"
ELSEWHERE = (POLYGRAPHY_SECTION, SERVE_SECTION, RAY_SECTION, EMBED_SECTION)
"""Sections that have test files of their own."""
_FENCE = re.compile(r"^```(\w*)$")


@dataclass(frozen=True)
class Block:
    """A fenced or indented block; ``language`` is empty when it does not say."""

    section: str
    line: int
    language: str
    text: str

    def commands(self) -> list[str]:
        """Its commands, each on one line, without comments and empty lines."""
        joined = self.text.replace("\\\n", " ")
        stripped = (re.sub(r"\s{2,}#.*$", "", line).strip() for line in joined.splitlines())
        return [" ".join(line.split()) for line in stripped if line]


def blocks(text: str) -> list[Block]:
    """All blocks, in order. An indented block ends at the next line that is not indented."""
    return list(_blocks(text.splitlines()))


def _blocks(lines: list[str]) -> Iterator[Block]:
    section, at = "", 0
    while at < len(lines):
        line, start = lines[at], at + 1
        if line.startswith("#"):
            section = line.lstrip("# ")
        fence = _FENCE.match(line)
        if fence:
            end = lines.index("```", at + 1)
            yield Block(section, start, fence[1], "\n".join(lines[at + 1 : end]) + "\n")
            at = end
        elif line.startswith("    ") and (at == 0 or not lines[at - 1].strip()):
            end = at
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            body = "\n".join(line[4:] for line in lines[at:end])
            yield Block(section, start, "", body.rstrip() + "\n")
            at = end - 1
        at += 1


def readme_blocks() -> list[Block]:
    return blocks(README.read_text(encoding="utf-8"))


def workspace(folder: Path, bundles: dict[str, Path]) -> Path:
    """A folder that looks like a clone to the commands, with ``bundles`` in engines/bundles."""
    for name in ("export", "plugins", "runtime"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "engines" / "bundles").mkdir(parents=True)
    for name, path in bundles.items():
        (folder / "engines" / "bundles" / name).symlink_to(path)
    return folder


def run(place: Path, script: str, **environment: str) -> str:
    """Run a script in bash, in ``place``, as it stands; what it printed to stdout."""
    scripts, python_path = sysconfig.get_path("scripts"), environment.pop("PYTHONPATH", "")
    done = subprocess.run(
        ["bash", "-ec", script],
        cwd=place,
        env={
            **os.environ,
            "PATH": os.pathsep.join((scripts, os.environ["PATH"])),
            "PYTHONPATH": os.pathsep.join(filter(None, (python_path, str(ROOT)))),
            "SSD_TRT_CACHE": str(place / "cache"),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout
