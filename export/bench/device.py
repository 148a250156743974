"""A compiled engine on a GPU, behind polygraphy's TrtRunner with its buffers on the device."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from engines.bundle import Bundle
from engines.tensors import DType
from export.bench.calls import TimedCall
from export.bench.data_loader import feeds
from export.check.runners import OpenPlan, host_type, on_device, open_plan

MEASURED = "TensorRT, enqueue to end of stream (buffers on the device, ssd:: layers on the host)"


class DeviceEngine:
    """The plan of one engine. Close it."""

    def __init__(self, bundle: Bundle, role: str) -> None:
        self.plan: OpenPlan = open_plan(bundle, role)
        self._memory = ExitStack()

    def runner(self, timed: TimedCall) -> Any:
        """A TrtRunner at the call's profile; ``infer`` times the engine, not the binding."""
        return _runner_class()(self.plan, timed.profile)

    def feed(self, timed: TimedCall) -> dict[str, Any]:
        """The call's inputs as device arrays; they live until the engine is closed."""
        specs = {spec.name: spec for spec in self.plan.manifest.inputs}
        metadata = {name: (host_type(spec.dtype), spec.shape) for name, spec in specs.items()}
        arrays = feeds(metadata, timed.call)
        for name, array in arrays.items():
            if specs[name].dtype is DType.BFLOAT16:
                array[...] = 0
        return {
            name: on_device(array, specs[name].dtype, self._memory)
            for name, array in arrays.items()
        }

    def close(self) -> None:
        self._memory.close()


def _runner_class() -> Any:
    from polygraphy.backend.trt import TrtRunner
    from polygraphy.exception import PolygraphyException

    class BoundPlanRunner(TrtRunner):  # type: ignore[misc]
        """TrtRunner looks up every tensor's shape and address at each ``infer``, in Python and in
        the time it takes. Here the first one binds, and the others only run."""

        def __init__(self, plan: OpenPlan, profile: int) -> None:
            super().__init__(plan.engine, optimization_profile=profile)
            self._plan = plan
            self._outputs: dict[str, Any] | None = None

        def infer_impl(self, feed: Mapping[str, Any]) -> dict[str, Any]:
            if self._outputs is None:
                try:
                    self._outputs = super().infer_impl(feed, copy_outputs_to_host=False)
                except PolygraphyException as error:
                    raise self._plan.explain(error) from error
                return self._outputs
            start = time.perf_counter()
            if not self.context.execute_async_v3(self.stream.ptr):
                raise self._plan.explain(RuntimeError("execute_async_v3 returned false"))
            self.stream.synchronize()
            self.inference_time = time.perf_counter() - start
            return self._outputs

        def deactivate_impl(self) -> None:
            self._outputs = None
            super().deactivate_impl()

    return BoundPlanRunner
