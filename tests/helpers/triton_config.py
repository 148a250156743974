"""config.pbtxt against the server's schema."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from google.protobuf import json_format, text_format


def read_config(path: Path) -> dict[str, Any]:
    """As the server hands it to a model. Raises text_format.ParseError for what is not in the
    schema."""
    parsed = text_format.Parse(path.read_text(encoding="utf-8"), model_config_schema()())
    return json_format.MessageToDict(parsed, preserving_proto_field_name=True)


def model_config_schema() -> Any:
    """``inference.ModelConfig``, of the descriptor that NVIDIA's client has."""
    name = "tritonclient_model_config_pb2"
    if name not in sys.modules:
        client = importlib.util.find_spec("tritonclient")
        assert client is not None
        assert client.submodule_search_locations is not None
        # Not as a part of its package, which wants gRPC.
        path = Path(client.submodule_search_locations[0]) / "grpc" / "model_config_pb2.py"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[name] = module
    return sys.modules[name].ModelConfig
