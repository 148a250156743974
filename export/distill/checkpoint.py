"""A training run on disk: what is needed to go on with it, and the best weights so far.

``run.json`` says what the run was asked to do, ``text.json`` how its text was to be written,
``state.pt`` where it stands, ``best.safetensors``
holds the weights that did best on held-out text. Each is replaced in one step; the state names the
best weights' figure, so either file may be the newer one after an interruption.
"""

from __future__ import annotations

import json
import math
import os
import pickle
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engines.errors import UsageError
from export.disk import sync
from export.distill.train import Progress, Trainer

if TYPE_CHECKING:
    from torch import Tensor

TEXT_FILE = "text.json"
_UNUSABLE = (
    RuntimeError,
    KeyError,
    TypeError,
    ValueError,
    EOFError,
    OSError,
    pickle.UnpicklingError,
)
"""What reading a damaged file, or one of another draft, ends in."""


@dataclass(frozen=True, slots=True)
class Best:
    """The best held-out figure so far, and the checks without a better one since then, of those
    that can end a run."""

    alpha: float = -math.inf
    num_worse: int = 0


class RunFolder:
    """The folder of one training run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def exists(self) -> bool:
        return (self.path / "run.json").exists()

    def start(self, settings: Mapping[str, object]) -> None:
        self._note("run.json", settings)

    def check(self, settings: Mapping[str, object]) -> None:
        """Raise UsageError naming the first setting that differs from the run's own."""
        self._compare("run.json", settings)

    def settle_text(self, settings: Mapping[str, object]) -> None:
        """Keep how the target is asked to write for this run. Raises UsageError naming the first
        setting that differs from what it was when the run began: the card tells of one."""
        if (self.path / TEXT_FILE).exists():
            self._compare(TEXT_FILE, settings)
        else:
            self._note(TEXT_FILE, settings)

    def _note(self, name: str, settings: Mapping[str, object]) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from None
        self._replace(name, json.dumps(settings, indent=1).encode())

    def _compare(self, name: str, settings: Mapping[str, object]) -> None:
        try:
            found = json.loads((self.path / name).read_text(encoding="utf-8"))
        except ValueError:
            found = {}
        found = found if isinstance(found, dict) else {}
        for setting, value in json.loads(json.dumps(settings)).items():
            if setting not in found or found[setting] != value:
                raise UsageError(
                    f"the run in {self.path} has {setting} {found.get(setting)}, this command "
                    f"{value}; go on with the same options, or remove that folder to start anew"
                )

    def save(self, trainer: Trainer, best: Best) -> None:
        """Keep where the run stands."""
        import io

        import torch

        content = io.BytesIO()
        state = {
            "weights": {n: t for n, t in trainer.draft.weights.items() if t.requires_grad},
            "optimizer": trainer.optimizer.state_dict(),
            "progress": asdict(trainer.progress),
            "best": asdict(best),
        }
        torch.save(state, content)
        self._replace("state.pt", content.getbuffer())

    def load(self, trainer: Trainer) -> Best:
        """Put a trainer where the run stands; a run that never saved starts from its beginning."""
        import torch

        path = self.path / "state.pt"
        if not path.exists():
            return Best()
        try:
            state = torch.load(path, map_location=trainer.draft.device, weights_only=True)
            _copy(state["weights"], trainer.draft.weights)
            trainer.optimizer.load_state_dict(state["optimizer"])
            trainer.progress = Progress(**state["progress"])
            return Best(**state["best"])
        except _UNUSABLE as error:
            raise self._unusable(path, error) from None

    def save_best(self, weights: Mapping[str, Tensor]) -> None:
        from safetensors.torch import save

        kept = {n: t.detach().contiguous() for n, t in weights.items() if t.requires_grad}
        self._replace("best.safetensors", save(kept))

    def load_best(self, weights: Mapping[str, Tensor]) -> None:
        """Copy the best weights into ``weights``; without any these stay as they are."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = self.path / "best.safetensors"
        if not path.exists():
            return
        try:
            _copy(load_file(path), weights)
        except (*_UNUSABLE, SafetensorError) as error:
            raise self._unusable(path, error) from None

    def _unusable(self, path: Path, error: Exception) -> UsageError:
        return UsageError(
            f"{path} cannot be used ({' '.join(str(error).split())[:200]}); "
            f"remove {self.path} to start anew"
        )

    def _replace(self, name: str, content: bytes | memoryview) -> None:
        partial = self.path / f".{name}.{os.getpid()}.partial"
        try:
            partial.write_bytes(content)
            sync(partial)
            partial.replace(self.path / name)
        except OSError as error:
            raise self._unwritable(error) from None
        finally:
            partial.unlink(missing_ok=True)

    def _unwritable(self, error: OSError) -> UsageError:
        return UsageError(
            f"{self.path} cannot be written ({error.strerror or error}); what was kept before is "
            "whole: make room, and go on by --resume"
        )


def _copy(source: Mapping[str, Tensor], into: Mapping[str, Tensor]) -> None:
    import torch

    with torch.no_grad():
        for name, tensor in source.items():
            into[name].copy_(tensor)
