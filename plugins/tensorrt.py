"""The ssd:: layers in TensorRT's registry: registered before a network is parsed or a plan read.

TensorRT and TensorRT-RTX keep a registry each; which one is meant is said by the vendor module
that every function here is given. A plan holds only the names of its plugin layers, so a process
that runs it registers them first, as the process that built it did. An unregistered layer is a
silent matter while parsing (its function takes its place) and a fatal one for a plan.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from engines.errors import BackendError, BundleIncompatibleError, UsageError
from plugins.layer import Launcher, LayerHost
from plugins.sample import tensorrt as sample
from plugins.verify import tensorrt as verify

_FORMS = (verify, sample)
NAMES = tuple(form.SIGNATURE.full_name for form in _FORMS)
"""Every layer that `register` brings, as manifests write it: ``ssd::Verify@1``."""


@dataclass(slots=True)
class _Registration:
    """What a registry points to and does not own; `trt` is held so that its id stays its own."""

    trt: Any
    host: LayerHost = field(default_factory=LayerHost)
    creators: list[Any] = field(default_factory=list)


_registrations: dict[int, _Registration] = {}
_lock = threading.Lock()


def register(trt: Any, launcher: Launcher | None = None) -> None:
    """Put the ssd:: layers into the plugin registry of the vendor module `trt`, once.

    Later calls add nothing, except that a `launcher` given then takes the place of the one
    before. Without any, TensorRT-RTX builds and reads engines, which then refuse to run; standard
    TensorRT times layers while it builds and may need one for that.

    Raises BackendError if other code has registered a layer of the same name and version, or if
    the registry takes none.
    """
    with _lock:
        registration = _registrations.get(id(trt))
        if registration is None:
            registration = _Registration(trt)
            _fill(trt.get_plugin_registry(), registration)
            _registrations[id(trt)] = registration
        if launcher is not None:
            registration.host.launcher = launcher


def _fill(registry: Any, registration: _Registration) -> None:
    taken = [name for name in NAMES if _is_registered(registry, name)]
    if taken:
        raise BackendError(
            f"other code in this process has registered {', '.join(taken)} already; "
            "load no other library with ssd:: plugins"
        )
    for form in _FORMS:
        creator = form.make_creator(registration.trt, registration.host)
        if registry.register_creator(creator, form.SIGNATURE.namespace):
            registration.creators.append(creator)
        else:
            # The registry would be left with pointers to creators that nobody keeps.
            for each in registration.creators:
                registry.deregister_creator(each)
            raise BackendError(
                f"{registration.trt.__name__} did not take {form.SIGNATURE.full_name} into its "
                "plugin registry"
            )


def missing(trt: Any, names: Iterable[str]) -> list[str]:
    """Those of `names` (``ssd::Verify@1``) that the registry of `trt` does not have, in order.

    Raises UsageError on a name of another form.
    """
    registry = trt.get_plugin_registry()
    return [name for name in names if not _is_registered(registry, name)]


def require(trt: Any, names: Iterable[str]) -> None:
    """Refuse to read a plan whose layers are not registered; call it before deserialising.

    Raises BackendError for a layer that `register` would have brought, BundleIncompatibleError
    for a layer or version that this release does not have.
    """
    absent = missing(trt, names)
    foreign = [name for name in absent if name not in NAMES]
    if foreign:
        raise BundleIncompatibleError(
            f"the engine needs {', '.join(foreign)}, and this release has {', '.join(NAMES)}; "
            "build the bundle again: python -m export build"
        )
    if absent:
        raise BackendError(
            f"the engine needs {', '.join(absent)}, not registered with {trt.__name__}; "
            "call plugins.tensorrt.register first"
        )


def refusals(trt: Any) -> list[str]:
    """Why layers of `trt` refused types, shapes, a plan or a run since the last call.

    The vendor replaces the reason by an error code; whoever gets such a code asks here.
    """
    with _lock:
        registration = _registrations.get(id(trt))
        if registration is None:
            return []
        found = list(registration.host.refusals)
        registration.host.refusals.clear()
        return found


def digest() -> str:
    """16 hex digits over what decides the content of our layers in a plan: the signatures."""
    signatures = " ".join(form.SIGNATURE.digest for form in _FORMS)
    return hashlib.sha256(signatures.encode()).hexdigest()[:16]


def _is_registered(registry: Any, full_name: str) -> bool:
    namespace, separator, rest = full_name.rpartition("::")
    name, at, version = rest.partition("@")
    if not (separator and name and at and version):
        raise UsageError(f"a plugin is named like ssd::Verify@1, found {full_name!r}")
    return registry.get_creator(name, version, namespace) is not None
