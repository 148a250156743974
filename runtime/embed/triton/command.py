"""``python -m runtime embed --triton DIR``: the options, and what the command prints."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path

from engines.bundle import Bundle, open_bundle
from engines.compat import require
from engines.errors import UsageError
from runtime.cli.console import emit, say
from runtime.cli.options import DRAFTERS, FALLBACKS, MODES, RULES, add_device, text, whole
from runtime.cli.report import to_json
from runtime.embed.triton.config import Parameters, instance_kind
from runtime.embed.triton.repository import Written, check_name, write_repository
from runtime.placement import AUTO
from runtime.settings import devices_for, settle
from runtime.spec.fallback import Fallback
from runtime.wishes import read_batch, read_drafter

PARAMETERS = {
    "mode": "mode",
    "verify": "verify",
    "drafter": "drafter",
    "fallback": "fallback",
    "num_draft": "num_draft",
    "branches": "branches",
    "batch": "max_batch",
    "max_waiting": "max_waiting",
    "device": "device",
}
"""Option -> parameter of config.pbtxt. What is not given is not None there, but left out."""

DESCRIPTION = """\
--triton DIR writes a model repository for NVIDIA's Triton Inference Server: DIR/NAME with
config.pbtxt, 1/model.py (Python backend, decoupled streaming) and the bundle. Clients use the
names that they know from its TensorRT-LLM and vLLM backends: text_input, max_tokens, stream, ...
It was run in one server, on a CPU, which the top of config.pbtxt names; not in NVIDIA's containers,
and not on a GPU."""


def add_triton_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``--triton``, which sets ``args.triton``."""
    group = parser.add_argument_group("Triton Inference Server", DESCRIPTION)
    group.add_argument(
        "--triton",
        type=Path,
        metavar="DIR",
        help="model repository to write the model into; made where it is missing",
    )
    group.add_argument(
        "--bundle",
        type=Path,
        metavar="BUNDLE",
        help="bundle to serve; its files are linked into the repository, or copied where the disk "
        "has no hard links, so that the repository can be moved",
    )
    group.add_argument(
        "--model-name",
        type=text,
        metavar="NAME",
        help="what clients call the model (default: the bundle folder's name)",
    )
    group.add_argument("--mode", choices=MODES, help="how to decode (default: auto)")
    group.add_argument("--verify", choices=RULES, help="see serve --help (default: coupled)")
    group.add_argument("--drafter", choices=DRAFTERS, help="see serve --help (default: auto)")
    group.add_argument("--fallback", choices=FALLBACKS, help="see serve --help (default: auto)")
    for option, metavar, what in (
        ("--num-draft", "K", "tokens drafted a round (default: what the bundle was built for)"),
        ("--branches", "W", "outcomes prepared a round (default: what the bundle was built for)"),
        ("--batch", "N", "texts decoded at once (default: what the bundle was built for)"),
    ):
        group.add_argument(option, type=whole(1), metavar=metavar, help=what)
    group.add_argument(
        "--max-waiting",
        type=whole(0),
        metavar="N",
        help="texts that may wait beside them; more are refused (default: 256)",
    )
    add_device(group)
    group.add_argument(
        "--execution-env",
        type=text,
        metavar="PATH",
        help="EXECUTION_ENV_PATH: an environment with ssd-trt in it, packed by conda-pack, such as "
        "'$$TRITON_MODEL_DIRECTORY/env.tar.gz' (default: the server's own Python has it)",
    )


def run_triton(args: argparse.Namespace) -> int:
    """Write the model and return the exit code. Raises UsageError, BundleError or CapacityError,
    with nothing written."""
    if args.bundle is None:
        raise UsageError("--triton needs --bundle DIR, the bundle to serve")
    name = args.model_name or Path(os.path.abspath(args.bundle)).name
    check_name(name)
    parameters = _parameters(args)
    bundle = open_bundle(args.bundle)
    on_gpu = _check(bundle, parameters)
    written = write_repository(
        args.triton,
        name,
        bundle,
        parameters,
        on_gpu=on_gpu,
        environment=args.execution_env,
    )
    if args.json:
        emit(to_json(_record(name, written, on_gpu=on_gpu)))
        return 0
    linked = f", {written.num_linked} of them links" if written.num_linked else ""
    emit(
        f"{written.folder}: {written.num_files} files of the bundle, "
        f"{written.num_bytes / 1e6:.0f} MB{linked}\n"
    )
    if not args.quiet:
        say(f"then: tritonserver --model-repository {shlex.quote(os.path.abspath(args.triton))}")
        say("what it needs, and what this was tried with, stands at the top of config.pbtxt")
    return 0


def refuse_triton_options(args: argparse.Namespace) -> None:
    """Raises UsageError where one of them is given without ``--triton``."""
    names = ("bundle", "model_name", *PARAMETERS, "execution_env")
    given = [name for name in names if getattr(args, name) is not None]
    if given:
        option = "--" + given[0].replace("_", "-")
        raise UsageError(f"{option} goes with --triton DIR; leave it away")


def _parameters(args: argparse.Namespace) -> Parameters:
    given = {PARAMETERS[name]: getattr(args, name) for name in PARAMETERS}
    return Parameters(**{name: value for name, value in given.items() if value is not None})


def _check(bundle: Bundle, parameters: Parameters) -> bool:
    """Whether the target runs on a GPU. Raises what opening the bundle so would raise, as far as
    that is known without loading it or measuring anything."""
    wishes = parameters.of_llm
    devices = devices_for(bundle, parameters.device)
    limits = bundle.manifest.limits
    require(
        bundle,
        backend=bundle.manifest.backend,
        num_draft=parameters.num_draft,
        branches=parameters.branches,
        on_gpu=devices.on_gpu,
    )
    read_batch(parameters.max_batch, limits.max_batch)
    if parameters.mode == AUTO and not devices.on_gpu:
        has_draft = bundle.draft is not None
        read_drafter(parameters.drafter, AUTO, devices, has_draft=has_draft)
    else:
        is_open = parameters.fallback == AUTO  # which would be measured
        wishes["fallback"] = Fallback.ZERO.value if is_open else parameters.fallback
        settle(bundle, saguaro=1.0, **wishes)  # type: ignore[arg-type]
    return devices.on_gpu


def _record(name: str, written: Written, *, on_gpu: bool) -> dict[str, object]:
    return {
        "model": name,
        "folder": str(written.folder),
        "config": str(written.folder / "config.pbtxt"),
        "num_files": written.num_files,
        "num_linked": written.num_linked,
        "num_bytes": written.num_bytes,
        "instance_kind": instance_kind(on_gpu=on_gpu),
    }
