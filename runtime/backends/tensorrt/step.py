"""One prepared call of a compiled engine: its tensors, and the context that they are bound to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from plugins.layer import DeviceTensor
from runtime.backends.api import CallShape
from runtime.backends.tensorrt.vendor_api import Context

if TYPE_CHECKING:
    from runtime.backends.tensorrt.session import TensorRtSession


class BoundContext:
    """A context, its profile, and the step whose shapes and addresses it has now.

    The only reference to the context: a step, or the traceback of an error, that somebody keeps
    must not keep it alive when its engine goes.
    """

    __slots__ = ("_context", "profile", "step")

    def __init__(self, context: Context) -> None:
        self._context: Context | None = context
        self.profile: int | None = None
        self.step: TensorRtStep | None = None

    @property
    def context(self) -> Context:
        assert self._context is not None, "the engine was released"
        return self._context

    def release(self) -> None:
        self._context = None


@dataclass(slots=True, eq=False)
class TensorRtStep:
    """See ``runtime.backends.api.DeviceStep``.

    ``outputs`` are all outputs by name, the engine's own greedy verdict or choice among them.
    A step is warm after its first run: TensorRT does what is left to do for new shapes in the
    first enqueue, and a capture may not meet that.
    """

    shape: CallShape
    num_rows: int
    profile: int
    is_shared: bool
    tokens: DeviceTensor
    positions: DeviceTensor
    write_at: DeviceTensor
    mask: DeviceTensor
    logit_rows: DeviceTensor
    num_draft: DeviceTensor
    logits: DeviceTensor
    outputs: dict[str, DeviceTensor]
    bound: BoundContext
    is_warm: bool = False
    _session: TensorRtSession = field(kw_only=True, repr=False)

    def enqueue(self) -> None:
        self._session.run(self)

    def __str__(self) -> str:
        """The call in messages."""
        shape = self.shape
        return (
            f"{shape.num_slots} x {shape.num_tokens} tokens with {shape.num_logits} logits at "
            f"{self.num_rows} rows, from slot {shape.first_slot}"
        )
