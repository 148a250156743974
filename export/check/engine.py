"""One text through an engine, call after call, whatever runs it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from engines.errors import BackendError
from engines.manifest import EngineManifest
from engines.profiles import PROMPT_CHUNK, PROMPT_STEP, pick_bucket, round_up
from export.bench.data_loader import Call, feeds
from export.check.runners import OpenPlan, host_type, on_device

Border = dict[str, npt.NDArray[Any]]
"""Inputs or outputs without the caches, by name."""


class Engine(Protocol):
    """An engine of one slot, whose caches carry over from call to call. Close it."""

    manifest: EngineManifest

    def call(self, border: Border) -> Border:
        """Run once; the arrays are the caller's to keep."""

    def close(self) -> None:
        """Free it and its caches."""


class OnnxEngine:
    """A graph on ONNX Runtime, its caches handed in and out as polygraphy does."""

    def __init__(self, runner: Any, manifest: EngineManifest) -> None:
        self.manifest = manifest
        self._runner = runner
        self._caches = empty_caches(manifest)
        runner.activate()

    def call(self, border: Border) -> Border:
        outputs = self._runner.infer({**border, **self._caches}, check_inputs=False)
        self._caches = {name: outputs.pop(f"{name}.next") for name in self._caches}
        return dict(outputs)

    def close(self) -> None:
        self._runner.deactivate()


class PlanEngine:
    """A compiled plan on a GPU: a runner a profile, caches shared and updated in place."""

    def __init__(self, plan: OpenPlan) -> None:
        self.manifest = plan.manifest
        self._plan = plan
        self._open = ExitStack()
        dtypes = {spec.name: spec.dtype for spec in plan.manifest.inputs}
        self._caches = {
            name: on_device(array, dtypes[name], self._open)
            for name, array in empty_caches(plan.manifest).items()
        }
        self._runners: dict[int, Any] = {}

    def call(self, border: Border) -> Border:
        profile = self._profile_for(border)
        if profile not in self._runners:
            self._runners[profile] = self._open.enter_context(self._plan.runner(profile))
        feed = {**border, **self._caches}
        try:
            outputs = self._runners[profile].infer(
                feed, check_inputs=False, copy_outputs_to_host=False
            )
        except Exception as error:
            raise self._plan.explain(error) from error
        return {name: view.numpy() for name, view in outputs.items() if not name.startswith("kv.")}

    def close(self) -> None:
        self._open.close()

    def _profile_for(self, border: Border) -> int:
        batch, tokens = border["tokens"].shape
        logits, length = border["logit_rows"].shape[1], border["mask"].shape[3]
        sizes = {"batch": batch, "tokens": tokens, "logits": logits, "length": length}
        for index, profile in enumerate(self._plan.facts.profiles):
            if profile.holds(**sizes):
                return index
        raise BackendError(f"the {self.manifest.role} plan has no profile for {sizes}")


def empty_caches(manifest: EngineManifest) -> Border:
    """Zeros for one slot and all rows, by input name."""
    kv = manifest.kv
    shape = (1, kv.num_kv_heads, kv.rows, kv.head_dim)
    return {
        spec.name: np.zeros(shape, host_type(spec.dtype))
        for spec in manifest.inputs
        if spec.name.startswith("kv.")
    }


@dataclass(frozen=True, slots=True)
class Choice:
    """The likeliest token, and how far its logit is from the next one's."""

    token: int
    margin: float


def choose(logits: npt.NDArray[np.float32]) -> Choice:
    """The greedy choice from one row of logits [V]; of equal ones the lowest id."""
    second, first = np.partition(logits, -2)[-2:]
    return Choice(int(logits.argmax()), float(first - second))


class Text:
    """The text that one engine has read so far."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._length = 0
        caches = [spec for spec in engine.manifest.inputs if spec.name.startswith("kv.")]
        self._rows_are_fixed = isinstance(caches[0].shape[2], int)
        self._border = {
            spec.name: (spec.dtype.value, spec.shape)
            for spec in engine.manifest.inputs
            if spec not in caches
        }

    def read(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits after each of ``tokens``, float32 [len(tokens), output vocabulary]."""
        parts = []
        for start in range(0, len(tokens), PROMPT_CHUNK):
            chunk = tokens[start : start + PROMPT_CHUNK]
            width = 1 if len(tokens) == 1 else round_up(len(chunk), PROMPT_STEP)
            parts.append(self._call(chunk, width)[: len(chunk)])
        return np.concatenate(parts)

    def continue_greedily(self, num_tokens: int, logits: npt.NDArray[np.float32]) -> list[Choice]:
        """The likeliest tokens, one call each, after the last row of ``logits`` [n, V]."""
        found = [choose(logits[-1])]
        while len(found) < num_tokens:
            found.append(choose(self.read([found[-1].token])[-1]))
        return found

    def _call(self, chunk: Sequence[int], width: int) -> npt.NDArray[np.float32]:
        kv = self._engine.manifest.kv
        # A graph for ONNX Runtime attends all rows that are bound; others cut the cache to L.
        rows = kv.rows
        if self._rows_are_fixed:
            needed = kv.scratch_rows + self._length + width
            rows = pick_bucket(self._engine.manifest.lengths, needed)
        border = feeds(
            self._border, Call(1, width, width, rows, self._length, scratch=kv.scratch_rows)
        )
        border["tokens"][0] = 0
        border["tokens"][0, : len(chunk)] = chunk
        if "num_draft" in border:
            border["num_draft"][0] = 0
        self._length += len(chunk)
        logits: npt.NDArray[np.float32] = self._engine.call(border)["logits"][0]
        return logits
