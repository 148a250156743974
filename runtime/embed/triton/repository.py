"""Writes DIR/NAME: whole, or not at all.

    DIR/NAME/config.pbtxt
    DIR/NAME/1/model.py
    DIR/NAME/1/bundle/       the bundle's files, by hard link where the file system has them

Nothing in it points outside, so it can be moved, packed and put into an object store. A process
that is killed (SIGTERM, SIGKILL) meanwhile leaves DIR/.NAME.ssd-triton, which the server would take
for a model, and the file DIR/.NAME.ssd-triton.lock: the next run for that model removes both.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from engines.bundle import Bundle
from engines.errors import UsageError
from engines.manifest import BUNDLE_FILE
from runtime.embed.staging import staged
from runtime.embed.triton.config import BUNDLE_FOLDER, Parameters, config_text

VERSION = "1"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")

MODEL = '''\
"""A bundle of ssd-trt as a model of Triton's Python backend; the work is in the package."""

from pathlib import Path

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        try:
            from runtime.embed.triton.model import ServedModel
        except ImportError as error:
            raise pb_utils.TritonModelException(
                f"the Python that runs this model does not find ssd-trt ({error}); see the top of "
                "config.pbtxt"
            ) from None
        self._model = ServedModel(pb_utils, args, Path(__file__).resolve().parent)

    def execute(self, requests):
        self._model.execute(requests)

    def finalize(self):
        self._model.close()
'''


@dataclass(frozen=True, slots=True)
class Written:
    """``num_linked`` of the bundle's ``num_files`` take no room of their own."""

    folder: Path
    num_files: int
    num_linked: int
    num_bytes: int


def check_name(name: str) -> None:
    """Raises UsageError for what is no model's name."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is no name for a model: up to 200 letters, digits, '.', '_' and '-', the "
            "first one a letter or digit; say --model-name NAME"
        )


def write_repository(
    root: Path,
    name: str,
    bundle: Bundle,
    parameters: Parameters,
    *,
    on_gpu: bool,
    environment: str | None = None,
) -> Written:
    """Write the model ``name`` into the repository ``root``, which is made where it is missing.

    Raises UsageError where ROOT/NAME exists, another run writes it, or the disk does not take it.
    """
    check_name(name)
    final = root / name
    if os.path.lexists(final):
        raise UsageError(f"{final} exists already; remove it, or say another --model-name")
    try:
        root.mkdir(parents=True, exist_ok=True)
        with staged(root, f"{name}.ssd-triton") as place:
            written = _write(place, bundle)
            config = config_text(name, parameters, on_gpu=on_gpu, environment=environment)
            (place / "config.pbtxt").write_text(config, encoding="utf-8")
            # Whoever has put a folder there meanwhile keeps it: it is not empty.
            place.rename(final)
    except OSError as error:
        raise UsageError(f"cannot write {final}: {error.strerror or error}") from None
    return Written(final, len(written), sum(written), bundle.num_bytes)


def _write(folder: Path, bundle: Bundle) -> list[bool]:
    """Everything but config.pbtxt; of each file of the bundle, whether it is a link."""
    version = folder / VERSION
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL, encoding="utf-8")
    return [
        _place(bundle.path / name, version / BUNDLE_FOLDER / name) for name in _files_of(bundle)
    ]


def _files_of(bundle: Bundle) -> list[str]:
    own = [BUNDLE_FILE, *(each.path for each in bundle.manifest.files)]
    of_engines = [
        f"{engine.role}/{file.path}" for engine in bundle.engines for file in engine.files
    ]
    return own + of_engines


def _place(source: Path, place: Path) -> bool:
    place.parent.mkdir(parents=True, exist_ok=True)
    real = source.resolve()  # a link to a link would lead outside
    try:
        os.link(real, place)
    except OSError:  # another disk, or a file system without links
        shutil.copy2(real, place)
        return False
    return True
