"""A timeline as a Chrome trace: JSON that Perfetto and chrome://tracing open.

The format is Google's "Trace Event Format": complete events (ph X) for spans, instant events (ph i)
for moments, metadata events (ph M) for names; times in microseconds from the first record.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from engines.errors import UsageError
from runtime.trace.timeline import Moment, Span, Timeline

PROCESS = 1
MOMENTS = "rounds"
"""The lane that moments are shown on."""


def write_trace(timeline: Timeline, path: Path, facts: Mapping[str, object]) -> None:
    """Write ``path`` in one step; ``facts`` (settings, totals) stand beside the events.

    Raises UsageError when the file cannot be written; a file of that name is then unchanged.
    """
    content = json.dumps(trace_object(timeline, facts), separators=(",", ":"))
    write_whole(path, content, "the trace", "--trace")


def write_whole(path: Path, content: str, what: str, option: str) -> None:
    """Write a text file in one step; UsageError that names ``what`` and the ``option`` to change.

    What exists and is no regular file (a pipe, a device, a folder) is refused, not replaced.
    """
    require_writable(path, what, option)
    whole = path.resolve()  # a link is followed, not replaced
    unfinished = whole.with_name(f".{os.getpid()}.unfinished")
    try:
        unfinished.write_text(content, encoding="utf-8")
        unfinished.replace(whole)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink()
        raise _unwritable(path, what, option, error.strerror) from None


def require_writable(path: Path, what: str, option: str) -> None:
    """UsageError where ``write_whole`` would fail: now, not after all the work."""
    try:
        is_other = path.exists() and not path.is_file()
        has_folder = os.access(path.resolve().parent, os.W_OK | os.X_OK)
    # Too long a name; a zero byte in it; links in a circle.
    except (OSError, ValueError, RuntimeError) as error:
        raise _unwritable(path, what, option, str(error)) from None
    if is_other:
        raise _unwritable(path, what, option, "it is no regular file")
    if not has_folder:
        raise _unwritable(path, what, option, "its folder is missing or not writable")


def _unwritable(path: Path, what: str, option: str, why: str | None) -> UsageError:
    return UsageError(f"{what} {str(path)!r} cannot be written: {why}; choose another {option}")


def trace_object(timeline: Timeline, facts: Mapping[str, object]) -> dict[str, object]:
    """The whole trace as JSON-ready values, events in order of time."""
    starts = [span.start_s for span in timeline.spans]
    starts += [moment.at_s for moment in timeline.moments]
    zero = min(starts, default=0.0)
    lanes = {MOMENTS: 0}
    for span in timeline.spans:
        lanes.setdefault(span.lane, len(lanes))
    events = [_span_event(span, lanes[span.lane], zero) for span in timeline.spans]
    events += [_moment_event(moment, zero) for moment in timeline.moments]
    events.sort(key=lambda event: event["ts"])  # type: ignore[arg-type, return-value]
    names = [_name("process_name", 0, "ssd-trt")]
    names += [_name("thread_name", number, lane) for lane, number in lanes.items()]
    return {
        "traceEvents": [*names, *events],
        "displayTimeUnit": "ms",
        "otherData": {**facts, "num_dropped": timeline.num_dropped},
    }


def read_trace(path: Path) -> Timeline:
    """The timeline of a file that ``write_trace`` wrote; its times start at 0.

    Raises UsageError for a file that is missing or of another form.
    """
    try:
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        lanes = {
            event["tid"]: event["args"]["name"]
            for event in events
            if event["ph"] == "M" and event["name"] == "thread_name"
        }
        timeline = Timeline()
        for event in events:
            start_s = event.get("ts", 0) / 1e6
            if event["ph"] == "X":
                end_s = start_s + event["dur"] / 1e6
                timeline.span(str(lanes[event["tid"]]), str(event["name"]), start_s, end_s)
            elif event["ph"] == "i":
                timeline.moment(str(event["name"]), start_s, **event["args"])
    except OSError as error:
        raise UsageError(f"the trace {path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError):
        raise UsageError(
            f"{path} is no trace of ours; make one with python -m runtime generate ... --trace FILE"
        ) from None
    return timeline


def _span_event(span: Span, thread: int, zero: float) -> dict[str, object]:
    return {
        "name": span.label,
        "cat": span.lane,
        "ph": "X",
        "pid": PROCESS,
        "tid": thread,
        "ts": _micros(span.start_s - zero),
        "dur": _micros(span.end_s - span.start_s),
    }


def _moment_event(moment: Moment, zero: float) -> dict[str, object]:
    return {
        "name": moment.label,
        "cat": MOMENTS,
        "ph": "i",
        "s": "t",
        "pid": PROCESS,
        "tid": 0,
        "ts": _micros(moment.at_s - zero),
        "args": dict(moment.facts),
    }


def _name(kind: str, thread: int, name: str) -> dict[str, object]:
    return {"name": kind, "ph": "M", "pid": PROCESS, "tid": thread, "args": {"name": name}}


def _micros(seconds: float) -> float:
    return round(seconds * 1e6, 3)
