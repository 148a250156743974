"""As much of a TensorRT module as our layers touch: for standard TensorRT, which no test has.

Its ways are those seen of the TensorRT-RTX module: every base class wants its own constructor
called, and a registry goes by what a creator says of itself, refuses a second one of the same
name and keeps none of them alive.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np


class DataType(Enum):
    FLOAT = 0
    HALF = 1
    INT8 = 2
    INT32 = 3
    BOOL = 4
    BF16 = 7
    INT64 = 8


class TensorFormat(Enum):
    LINEAR = 0
    CHW32 = 5


class PluginFieldType(Enum):
    CHAR = 6


class TensorRTPhase(Enum):
    BUILD = 0
    RUNTIME = 1


@dataclass(frozen=True)
class PluginField:
    name: str
    data: np.ndarray
    type: PluginFieldType


@dataclass(frozen=True)
class Desc:
    """PluginTensorDesc, and DynamicPluginTensorDesc in its `desc` and `max`."""

    dims: tuple[int, ...]
    type: DataType
    format: TensorFormat = TensorFormat.LINEAR

    @property
    def desc(self) -> Desc:
        return self

    @property
    def max(self) -> tuple[int, ...]:
        return self.dims


class _Interface:
    constructed: frozenset[type] = frozenset()

    def __init__(self) -> None:
        raise AssertionError("call the constructor of each interface")


def _interface(name: str) -> type[_Interface]:
    def construct(self: _Interface) -> None:
        self.constructed |= {made}

    made = type(name, (_Interface,), {"__init__": construct})
    return made


class Registry:
    """``refuses`` is the name of a layer that it does not take."""

    def __init__(self) -> None:
        self.creators: dict[tuple[str, str, str], weakref.ref[Any]] = {}
        self.refuses: str | None = None

    def register_creator(self, creator: Any, _namespace: str = "") -> bool:
        key = (creator.plugin_namespace, creator.name, creator.plugin_version)
        if key in self.creators or creator.name == self.refuses:
            return False
        self.creators[key] = weakref.ref(creator)
        return True

    def deregister_creator(self, creator: Any) -> bool:
        key = (creator.plugin_namespace, creator.name, creator.plugin_version)
        return self.creators.pop(key, None) is not None

    def get_creator(self, name: str, version: str, namespace: str = "") -> Any:
        reference = self.creators.get((namespace, name, version))
        if reference is None:
            return None
        creator = reference()
        assert creator is not None, f"{namespace}::{name}@{version} is gone: a real one would crash"
        return creator


class FakeTensorRT:
    """A vendor module with a registry of its own."""

    DataType = DataType
    TensorFormat = TensorFormat
    PluginFieldType = PluginFieldType
    TensorRTPhase = TensorRTPhase
    PluginField = PluginField
    PluginFieldCollection = list
    DimsExprs = list
    IPluginV3 = _interface("IPluginV3")
    IPluginV3OneCore = _interface("IPluginV3OneCore")
    IPluginV3OneBuild = _interface("IPluginV3OneBuild")
    IPluginV3OneRuntime = _interface("IPluginV3OneRuntime")
    IPluginCreatorV3One = _interface("IPluginCreatorV3One")

    def __init__(self) -> None:
        self.__name__ = "tensorrt"
        self.registry = Registry()

    def get_plugin_registry(self) -> Registry:
        return self.registry
