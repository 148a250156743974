"""Write a bundle so that it is either whole or absent.

It is written into a hidden sibling of its final place and renamed when it is complete.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from engines.bundle import CHAT_TEMPLATE_FILE, TOKENIZER_FILE
from engines.errors import UsageError
from engines.locks import locked
from engines.manifest import BUNDLE_FILE, DRAFT, ENGINE_FILE, TARGET
from export.disk import sync

_OWN_NAMES = {BUNDLE_FILE, TOKENIZER_FILE, CHAT_TEMPLATE_FILE, TARGET, DRAFT}
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class BundleWriter:
    """The right to write the bundle at ``final``, held by one process at a time::

        with BundleWriter(final) as writer:     # waits for another builder of the same bundle
            folder = writer.stage()             # empty, hidden, beside ``final``
            ...                                 # write and seal
            writer.publish()                    # now, and only now, ``final`` is the new bundle

    Leaving the block without ``publish`` removes what was written; the bundle that stood at
    ``final`` stays. A killed builder's remains are removed by the next one.

    ``on_wait`` is called once if another process is building. Raises UsageError when ``final``
    cannot be written, or holds something that is not a bundle. OSErrors in the block, such as a
    full disk, become UsageErrors too.
    """

    def __init__(self, final: Path, on_wait: Callable[[], None] | None = None) -> None:
        self.final = Path(os.path.realpath(final))
        self._shown = final
        self._on_wait = on_wait
        self._held = ExitStack()

    def __enter__(self) -> Self:
        try:
            check_replaceable(self.final)
            self.final.parent.mkdir(parents=True, exist_ok=True)
            with ExitStack() as stack:
                stack.enter_context(locked(self._sibling("lock"), self._on_wait))
                self._sweep()
                self._held = stack.pop_all()
        except OSError as error:
            raise self._explain(error) from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._held:
            self._sweep()
        cause = _write_failure(error)
        if cause is not None:
            raise self._explain(cause) from None

    def stage(self) -> Path:
        """A new empty folder to write the bundle into."""
        folder = self._sibling("build")
        folder.mkdir()
        return folder

    def stage_twin(self) -> Path:
        """A new empty folder for a bundle to compare with; it is never published."""
        folder = self._sibling("twin")
        folder.mkdir()
        return folder

    def drop_twin(self) -> None:
        """Remove that folder, if there is one."""
        self._remove("twin")

    def publish(self) -> None:
        """Put the staged folder in the place of ``final``; it is on disk when this returns."""
        staged, old = self._sibling("build"), self._sibling("old")
        check_replaceable(self.final)
        _sync_tree(staged)
        if self.final.exists():
            self.final.rename(old)
        staged.rename(self.final)
        sync(self.final.parent)

    def _sibling(self, kind: str) -> Path:
        return self.final.with_name(f".{self.final.name}.ssd-{kind}")

    def _sweep(self) -> None:
        """Clear what a builder left, this one or a killed one: the lock says nobody uses it."""
        old = self._sibling("old")
        if old.is_dir() and not self.final.exists():  # stopped between the two renames
            old.rename(self.final)
        for kind in ("old", "build", "twin"):
            self._remove(kind)

    def _remove(self, kind: str) -> None:
        remains = self._sibling(kind)
        if remains.is_dir() and not remains.is_symlink():
            shutil.rmtree(remains, ignore_errors=True)
        else:
            remains.unlink(missing_ok=True)

    def _explain(self, error: OSError) -> UsageError:
        if error.errno in _DISK_FULL:
            return UsageError(
                f"the disk filled up while {self._shown} was being written; nothing was kept: "
                "free some space or choose another place with --out"
            )
        reason = error.strerror or error
        where = f" ({error.filename})" if error.filename else ""
        return UsageError(
            f"cannot write {self._shown}: {reason}{where}; choose another place with --out"
        )


def check_replaceable(final: Path) -> None:
    """UsageError unless ``final`` is free, an empty folder, or a bundle and nothing else."""
    if not os.path.lexists(final):
        return
    try:
        if not final.is_dir():
            raise UsageError(f"{final} is a file, not a folder; choose another --out")
        names = {entry.name for entry in final.iterdir()}
        # Other tools have a bundle.json, or a target folder, too.
        is_own = BUNDLE_FILE in names and (final / TARGET / ENGINE_FILE).exists()
    except OSError as error:
        raise UsageError(
            f"cannot look into {error.filename or final}: {error.strerror}; make it readable or "
            "choose another --out"
        ) from None
    foreign = sorted(names - _OWN_NAMES)
    if names and (foreign or not is_own):
        raise UsageError(
            f"{final} is not a bundle (it holds {(foreign or sorted(names))[0]}) and will not be "
            "replaced; remove it or choose another --out"
        )


def _write_failure(error: BaseException | None) -> OSError | None:
    """The OSError behind ``error``: itself, or a full disk that a library wrapped."""
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
        return error
    while error is not None:
        if isinstance(error, OSError) and error.errno in _DISK_FULL:
            return error
        error = error.__cause__ or error.__context__
    return None


def _sync_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        sync(path)
    sync(folder)
