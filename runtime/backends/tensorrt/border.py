"""Does an engine take and give what its manifest says? Asked once, when it is loaded.

Everything that a session does later (addresses, sizes, the rows of a cache) is worked out from the
manifest; an engine that differs would read and write other memory than was meant.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engines.border import kv_names, next_name
from engines.errors import BundleCorruptError
from engines.manifest import EngineManifest, PlanFacts
from engines.profiles import ShapeProfile
from engines.tensors import TensorSpec
from plugins.layer import VENDOR_NAMES
from runtime.backends.tensorrt.vendor_api import Engine


def require_border(trt: Any, engine: Engine, manifest: EngineManifest, plan: PlanFacts) -> None:
    """BundleCorruptError, naming the first difference, unless ``engine`` is the manifest's.

    Compared are the names, directions, element types, shapes, memory layout and place of all
    inputs and outputs, the shape profiles, and which output is written in the memory of which
    input. ``trt`` is the vendor's module.
    """
    for difference in _differences(trt, engine, manifest, plan):
        raise BundleCorruptError(
            f"the {manifest.role} engine is not the one of its manifest: {difference}; rebuild the "
            "bundle"
        )


def _differences(
    trt: Any, engine: Engine, manifest: EngineManifest, plan: PlanFacts
) -> Iterator[str]:
    found = {engine.get_tensor_name(index) for index in range(engine.num_io_tensors)}
    specs = {spec.name: spec for spec in (*manifest.inputs, *manifest.outputs)}
    for name in sorted(found ^ specs.keys()):
        yield f"it {'also has' if name in found else 'lacks'} the tensor {name}"
    if engine.num_optimization_profiles != len(plan.profiles):
        yield f"it has {engine.num_optimization_profiles} profiles, expected {len(plan.profiles)}"
    directions = {spec.name: trt.TensorIOMode.INPUT for spec in manifest.inputs}
    types = {dtype: getattr(trt.DataType, name) for dtype, name in VENDOR_NAMES.items()}
    for name, spec in specs.items():
        for what, is_, expected in (
            (
                "the direction",
                engine.get_tensor_mode(name),
                directions.get(name, trt.TensorIOMode.OUTPUT),
            ),
            ("the type", engine.get_tensor_dtype(name), types[spec.dtype]),
            ("the place", engine.get_tensor_location(name), trt.TensorLocation.DEVICE),
        ):
            if is_ != expected:
                yield f"{name} has {what} {is_}, expected {expected}"
        shape = tuple(engine.get_tensor_shape(name))
        if not _is_shape(shape, spec, plan.profiles):
            yield f"{name} has the shape {list(shape)}, expected {list(spec.shape)}"
        for index, profile in enumerate(plan.profiles):
            layout = engine.get_tensor_format(name, index)
            if layout != trt.TensorFormat.LINEAR:
                yield f"{name} has the layout {layout} in profile {profile.name}"
    for spec in manifest.inputs:
        yield from _profile_differences(engine, spec, plan.profiles)
    yield from _alias_differences(engine, manifest)


def _is_shape(shape: tuple[int, ...], spec: TensorSpec, profiles: tuple[ShapeProfile, ...]) -> bool:
    """A named dimension is -1; its size where no profile lets it vary."""
    if len(shape) != len(spec.shape):
        return False
    for size, dim in zip(shape, spec.shape, strict=True):
        if isinstance(dim, int):
            allowed = {dim}
        else:
            spans = [profile.span(dim) for profile in profiles]
            sizes = {size for span in spans for size in (span.least, span.most)}
            allowed = {-1} | (sizes if len(sizes) == 1 else set())
        if size not in allowed:
            return False
    return True


def _profile_differences(
    engine: Engine, spec: TensorSpec, profiles: tuple[ShapeProfile, ...]
) -> Iterator[str]:
    for index, profile in enumerate(profiles):
        found = [tuple(shape) for shape in engine.get_tensor_profile_shape(spec.name, index)]
        expected = [
            tuple(
                dim if isinstance(dim, int) else getattr(profile.span(dim), end)
                for dim in spec.shape
            )
            for end in ("least", "typical", "most")
        ]
        if found != expected:
            yield (
                f"profile {profile.name} gives {spec.name} the shapes {found}, expected {expected}"
            )


def _alias_differences(engine: Engine, manifest: EngineManifest) -> Iterator[str]:
    """A cache that is not updated in place would be two memories, of which we give one."""
    caches = {
        next_name(name): name for layer in range(manifest.kv.num_layers) for name in kv_names(layer)
    }
    for spec in manifest.outputs:
        expected = caches.get(spec.name)
        found = engine.get_aliased_input_tensor(spec.name)
        if found != expected:
            yield (
                f"{spec.name} is written {f'over {found}' if found else 'to memory of its own'}, "
                f"expected {f'over {expected}' if expected else 'memory of its own'}"
            )
