"""Profiles: what a published run took and by what law its rounds ended, as JSON.

    {"format": "ssd-replay", "version": 1, "about": "...",
     "laws": {NAME: LAW}, "runs": [RUN]}

A LAW has figures for ``hit``, and where they differ for ``jit`` (drafted after a miss; else as
hit), ``none`` (rounds without drafts: only their ranks count; else as jit) and ``sd`` (else as
jit). Figures are ``schema.KindFigures``: how drafts are accepted, as ``histogram`` or ``accept``,
and how the bonus token ranks, as ``exponent`` or as ``rejected`` and ``bonus``.

A RUN has a ``name``, its ``law``, ``batch``, the times of calls, what the published run was set
to, and what came of it: ``schema.Run``. A time is a number of milliseconds, or a table by rows and
tokens of a call: {"rows": [1], "tokens": [1, 8], "ms": [[14.9, 15.0]]}.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import MISSING, fields
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from engines.codec import DecodeError, decode, encode
from engines.errors import UsageError
from runtime.bench.replay.schema import KindFigures, LawFigures, Profile, Run, TimeTable
from runtime.bench.replay.shipped import shipped, shipped_file
from runtime.spec.outcome_log import unrepeated

FORMAT, VERSION = "ssd-replay", 1
MOST_BYTES = 2**20
KINDS = ("hit", "jit", "none", "sd")
TIMES = ("target_ms", "draft_ms", "target_beside_ms", "draft_beside_ms")


def read_profile(name: str) -> Profile:
    """A shipped profile by its name, or a file. Raises UsageError that names what is wrong."""
    if name in shipped():
        source: Traversable = shipped_file(name)
    else:
        source = Path(name)
        if source.suffix != ".json":
            raise UsageError(
                f"--replay {name} is neither a shipped profile ({', '.join(shipped())}) nor a "
                ".json profile nor a .jsonl outcome log"
            )
    try:
        with source.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read --replay {name}: {error.strerror or error}") from None
    if len(data) > MOST_BYTES:
        raise UsageError(f"--replay {name} is longer than {MOST_BYTES} bytes: no profile")
    try:
        record = json.loads(data, object_pairs_hook=unrepeated)
    except DecodeError as error:
        raise UsageError(f"--replay {name}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--replay {name} is not JSON ({error})") from None
    return profile_of(record, f"--replay {name}")


def profile_of(record: object, where: str) -> Profile:
    """A profile from plain JSON values. Raises UsageError."""
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise UsageError(f'{where} is no profile: it does not say "format": "{FORMAT}"')
    version = record.get("version")
    if type(version) is not int or version != VERSION:
        raise UsageError(f"{where} has version {version!r} of the format, expected {VERSION}")
    body = {key: value for key, value in record.items() if key not in ("format", "version")}
    try:
        return decode(Profile, _with_defaults(body), where)
    except DecodeError as error:
        raise UsageError(str(error)) from None


def _with_defaults(body: dict[str, Any]) -> dict[str, Any]:
    """The codec asks for every field; people leave out what does not matter."""
    body = dict(body)
    if isinstance(laws := body.get("laws"), dict):
        body["laws"] = {
            name: _filled(law, LawFigures, KINDS, KindFigures) for name, law in laws.items()
        }
    if isinstance(runs := body.get("runs"), list):
        body["runs"] = [_filled(run, Run, TIMES, TimeTable) for run in runs]
    return body


def _filled(
    record: object, kind: type, inner: Iterable[str] = (), inner_kind: type = object
) -> object:
    """An object with the defaults of a dataclass, and so those of its ``inner`` fields."""
    if not isinstance(record, dict):
        return record
    defaults = {f.name: encode(f.default) for f in fields(kind) if f.default is not MISSING}
    filled = defaults | record
    for name in inner:
        if name in filled:
            filled[name] = _filled(filled[name], inner_kind)
    return filled
