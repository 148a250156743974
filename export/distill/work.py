"""The working folder of a run: text, the target's states, answers, and the run's checkpoint.

target.json   which target wrote all this
text/         shards (shards.py), shared by every run that is given this folder
lock          held by the run that works here
runs/NAME/    the checkpoint of the draft NAME (checkpoint.py)
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from engines.errors import UsageError
from engines.locks import locked
from export.distill.artefact import check_output
from export.distill.checkpoint import RunFolder
from export.distill.options import Options


class Work:
    """A folder of this target's. Made if need be; one ``--work`` gave is kept at the end."""

    def __init__(self, options: Options, fingerprint: str | None) -> None:
        self.path = options.work_folder
        self.text = self.path / "text"
        self.run = RunFolder(self.path / "runs" / options.out.name)
        self._is_given = options.work is not None
        self._options = options
        self._claim(fingerprint)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the folder; raise UsageError while another run does. Two would number their shards
        alike, and each take what the other wrote for its own. Raises UsageError, too, where the
        draft is written already, or a run for it was left that is not to be gone on with."""

        def refuse() -> None:
            raise UsageError(
                f"another run works in {self.path}; wait until it has ended, or name another "
                "folder by --work"
            )

        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.path / "lock", refuse))
            except OSError as error:
                raise UsageError(f"--work {self.path} cannot be used: {error}") from None
            options = self._options
            check_output(options.out)  # it may have been written while the target was read
            if self.run.exists() and not options.resume:
                raise UsageError(
                    f"{self.run.path} holds an unfinished run for --out {options.out}; "
                    "go on with it by --resume, or remove that folder"
                )
            yield

    def finish(self) -> None:
        """The draft is written: remove what only its making needed."""
        shutil.rmtree(self.run.path if self._is_given else self.path, ignore_errors=True)

    def _claim(self, fingerprint: str | None) -> None:
        mark = self.path / "target.json"
        wanted = {"fingerprint": fingerprint}
        try:
            if mark.exists():
                if json.loads(mark.read_text(encoding="utf-8")) != wanted:
                    raise UsageError(
                        f"--work {self.path} belongs to another target; name another folder"
                    )
                return
            # Not ours to fill, and OUT.work is removed at the end.
            if self.path.is_dir() and any(self.path.iterdir()):
                raise UsageError(
                    f"{self.path} holds other files; name another folder for this run by --work"
                )
            self.path.mkdir(parents=True, exist_ok=True)
            partial = self.path / f".{mark.name}.{os.getpid()}.partial"
            try:
                partial.write_text(json.dumps(wanted), encoding="utf-8")
                partial.replace(mark)
            finally:
                partial.unlink(missing_ok=True)
        except (OSError, ValueError) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(f"--work {self.path} cannot be used: {error}") from None
