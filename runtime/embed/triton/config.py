"""config.pbtxt: written for a bundle, and read again from the JSON that the server makes of it.

The schema is ``inference.ModelConfig`` of Triton's model_config.proto, in protobuf's text format.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields

from engines.errors import UsageError
from runtime.embed.triton.tensors import INPUTS, OUTPUTS, Input, Output

BUNDLE_FOLDER = "bundle"
ENVIRONMENT = "EXECUTION_ENV_PATH"
NUMBERS = {"num_draft", "branches", "max_batch", "max_waiting", "drain_timeout_s"}

HEADER = """\
# Written by: python -m runtime embed --triton DIR
#
# A model for the Python backend of Triton 24.11 or newer (older ones cannot handle numpy 2).
# 1/model.py needs ssd-trt in the Python that the server runs models with, and of its version, which
# is 3.12 in NVIDIA's containers: pip install 'ssd-trt[cpu,grammar]' there; or an environment whose
# bin stands first in PATH when the server starts; or one packed by conda-pack, which the parameter
# EXECUTION_ENV_PATH names. PYTHONPATH may be ignored.
#
# Tried with one server only: Triton 24.10, as the package nvidia-pytriton 0.7.0 has it, on a CPU,
# with numpy 1.26: answers and streams over HTTP and gRPC, clients that leave, bad requests and
# SIGTERM. It was not run in NVIDIA's containers, and not run on a GPU.
#
# No dynamic_batching and max_batch_size 0: a request is one text, and the engine itself lets texts
# join and leave between rounds (max_batch of them run at once, max_waiting more may wait). One
# instance: a second one would be a second pair of engines in a process of its own.
"""


@dataclass(frozen=True, slots=True)
class Parameters:
    """What stands in ``parameters``: options of ``LLM.open``, and how many may wait.

    bundle           folder of the bundle, from the version's folder on
    max_batch        texts decoded at once; None: what the bundle was built for
    max_waiting      texts that may wait beside them; more are refused (UNAVAILABLE)
    drain_timeout_s  how long running texts get when the model is unloaded

    None is not written: it leaves the choice to the bundle.
    """

    bundle: str = BUNDLE_FOLDER
    mode: str = "auto"
    verify: str = "coupled"
    drafter: str = "auto"
    fallback: str = "auto"
    num_draft: int | None = None
    branches: int | None = None
    max_batch: int | None = None
    device: str | None = None
    max_waiting: int = 256
    drain_timeout_s: int = 30

    @property
    def of_llm(self) -> dict[str, object]:
        """Keyword arguments of ``LLM.open``."""
        given = asdict(self)
        return {
            name: value
            for name, value in given.items()
            if name not in ("bundle", "max_waiting", "drain_timeout_s")
        }


def read_parameters(written: Mapping[str, object]) -> Parameters:
    """``parameters`` of the model's configuration. Names in capitals are the server's own.

    Raises UsageError for a name or a value that is none of ours.
    """
    known = {each.name for each in fields(Parameters)}
    given: dict[str, object] = {}
    for name, entry in written.items():
        if name.isupper():
            continue
        if name not in known:
            raise UsageError(
                f"config.pbtxt has the parameter {name!r}, expected {', '.join(sorted(known))}"
            )
        value = entry.get("string_value") if isinstance(entry, Mapping) else None
        if not isinstance(value, str) or not value:
            raise UsageError(f"the parameter {name} of config.pbtxt has no string_value")
        given[name] = _whole(name, value) if name in NUMBERS else value
    return Parameters(**given)  # type: ignore[arg-type]


def _whole(name: str, value: str) -> int:
    if not (value.isascii() and value.isdecimal()):
        raise UsageError(f"the parameter {name} of config.pbtxt is {value!r}, not a whole number")
    return int(value)


def config_text(
    name: str, parameters: Parameters, *, on_gpu: bool, environment: str | None = None
) -> str:
    """The whole of config.pbtxt. ``environment``: where the server finds Python's packages."""
    written = {
        each.name: getattr(parameters, each.name)
        for each in fields(parameters)
        if getattr(parameters, each.name) is not None
    }
    if environment is not None:
        written[ENVIRONMENT] = environment
    return "\n".join(
        [
            HEADER,
            f"name: {_quoted(name)}",
            'backend: "python"',
            "max_batch_size: 0",
            "",
            "model_transaction_policy { decoupled: true }",
            f"instance_group [ {{ count: 1 kind: {instance_kind(on_gpu=on_gpu)} }} ]",
            "",
            _tensors("input", INPUTS),
            _tensors("output", OUTPUTS),
            *(_parameter(key, value) for key, value in written.items()),
            "",
        ]
    )


def instance_kind(*, on_gpu: bool) -> str:
    """The model names its GPUs itself: KIND_GPU would make an instance for each."""
    return "KIND_MODEL" if on_gpu else "KIND_CPU"


def _tensors(field: str, tensors: Iterable[Input | Output]) -> str:
    return "\n".join(_tensor(field, each) for each in tensors) + "\n"


def _tensor(field: str, each: Input | Output) -> str:
    dims = "[ -1 ]" if each.is_list else "[ 1 ]"
    optional = " optional: true" if isinstance(each, Input) else ""
    entry = f"name: {_quoted(each.name)} data_type: {each.data_type} dims: {dims}{optional}"
    what = f"{each.what}, as {each.means}" if isinstance(each, Input) and each.means else each.what
    return f"# {what}\n{field} {{ {entry} }}"


def _parameter(key: str, value: object) -> str:
    return f"parameters {{ key: {_quoted(key)} value {{ string_value: {_quoted(str(value))} }} }}"


def _quoted(text: str) -> str:
    """A string of the text format: JSON's escapes are among its own, for what it escapes."""
    return json.dumps(text, ensure_ascii=False)
