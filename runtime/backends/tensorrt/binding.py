"""Setting a context to a call: profile, shapes, addresses. Every answer of TensorRT is checked."""

from __future__ import annotations

from engines.border import kv_names, next_name
from engines.errors import CapacityError
from engines.manifest import EngineManifest, PlanFacts
from runtime.backends.api import CallShape
from runtime.backends.device_blocks import resolved, sizes_of
from runtime.backends.device_caches import DeviceCaches
from runtime.backends.tensorrt.faults import Faults
from runtime.backends.tensorrt.step import TensorRtStep

ALIGNMENT = 256
"""What TensorRT asks of every address."""


def pick_profile(manifest: EngineManifest, plan: PlanFacts, shape: CallShape, num_rows: int) -> int:
    """The first profile that holds the call; they are listed with the most used first.

    Raises CapacityError, with what was compiled.
    """
    for index, profile in enumerate(plan.profiles):
        if profile.holds(
            batch=shape.num_slots,
            tokens=shape.num_tokens,
            logits=shape.num_logits,
            length=num_rows,
        ):
            return index
    built = ", ".join(
        f"{each.name} (B {each.batch.least} to {each.batch.most}, T {each.tokens.least} to "
        f"{each.tokens.most}, R {each.logits.least} to {each.logits.most})"
        for each in plan.profiles
    )
    raise CapacityError(
        f"the {manifest.role} engine was not compiled for a call of B = {shape.num_slots} texts, "
        f"T = {shape.num_tokens} tokens and R = {shape.num_logits} logits at {num_rows} rows, but "
        f"for {built}; build it again with a larger --max-batch, --num-draft or --max-branches"
    )


def bind(
    step: TensorRtStep,
    manifest: EngineManifest,
    caches: DeviceCaches,
    faults: Faults,
    stream: int,
) -> None:
    """Set the context of ``step`` to it; what TensorRT copies for that, it enqueues on ``stream``.

    Raises BackendError; the context is then bound to no step.
    """
    bound = step.bound
    bound.step = None
    faults.forget()
    if bound.profile != step.profile:
        bound.profile = None
        if not bound.context.set_optimization_profile_async(step.profile, stream):
            raise faults.make(f"set_optimization_profile_async({step.profile})")
        bound.profile = step.profile
    sizes = sizes_of(step.shape, step.num_rows)
    for spec in manifest.inputs:
        shape = resolved(spec, sizes)
        if not bound.context.set_input_shape(spec.name, shape):
            raise faults.make(f"set_input_shape({spec.name}, {list(shape)})")
    try:
        missing = bound.context.infer_shapes()
    except RuntimeError as error:
        raise faults.make("infer_shapes", error=error) from error
    if missing:
        raise faults.make(f"infer_shapes, which lacks {', '.join(missing)},")
    for name, address in _addresses(step, manifest, caches).items():
        if not bound.context.set_tensor_address(name, address):
            raise faults.make(f"set_tensor_address({name}, {address:#x})")
    bound.step = step


def _addresses(
    step: TensorRtStep, manifest: EngineManifest, caches: DeviceCaches
) -> dict[str, int]:
    """Of every input and output; a cache and its update are one memory."""
    addresses = {
        spec.name: getattr(step, spec.name).address
        for spec in manifest.inputs
        if not spec.name.startswith("kv.")
    }
    addresses |= {name: tensor.address for name, tensor in step.outputs.items()}
    for layer in range(manifest.kv.num_layers):
        for part, name in enumerate(kv_names(layer)):
            address = caches.address(2 * layer + part, step.shape.first_slot)
            addresses[name] = addresses[next_name(name)] = address
    return addresses
