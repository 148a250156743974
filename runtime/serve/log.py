"""The access log: a line a request to stderr, for people or as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from engines.errors import as_line

if TYPE_CHECKING:
    from runtime.serve.http.edge import Line

SILENT = ("/health", "/metrics", "/stats")
"""Asked for again and again by machines; said only where they failed."""


def is_told(line: Line) -> bool:
    return line.path not in SILENT or line.status >= 500


def as_text(line: Line) -> str:
    """``127.0.0.1 POST /v1/completions 200 0.41 s, 12+50 tokens, first 0.09 s, ... req-1f``"""
    more = line.more
    parts = [f"{line.seconds:.3f} s"]
    if "completion_tokens" in more:
        parts.append(f"{more['prompt_tokens']}+{more['completion_tokens']} tokens")
        for name, form in (
            ("ttft_s", "first after {:.3f} s"),
            ("tokens_per_second", "{:.1f} tokens/s"),
            ("acceptance_length", "{:.2f} a round"),
        ):
            if more[name] is not None:
                parts.append(form.format(more[name]))
        parts += [str(reason) for reason in more["finish_reasons"]]
    if line.is_cut:
        parts.append("the client went away")
    if "error" in more:
        parts.append(f"error: {more['error']}")
    status = line.status or "-"
    return as_line(
        f"{line.client} {line.method} {line.path} {status} {', '.join(parts)} {line.request_id}"
    )


def as_json(line: Line) -> str:
    record = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "request_id": line.request_id,
        "client": line.client,
        "method": line.method,
        "path": line.path,
        "status": line.status or None,
        "seconds": round(line.seconds, 6),
        "client_went_away": line.is_cut,
        **line.more,
    }
    return json.dumps(record)


def logger(say: Callable[[str], None], *, is_json: bool, is_quiet: bool) -> Callable[[Line], None]:
    """What is told of each request (``runtime.serve.http.app.create_app``)."""
    write = as_json if is_json else as_text

    def log(line: Line) -> None:
        if not is_quiet and is_told(line):
            say(write(line))

    return log
