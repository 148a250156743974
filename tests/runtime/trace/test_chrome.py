"""The file that Perfetto opens."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from engines.errors import UsageError
from runtime.trace.chrome import read_trace, trace_object, write_trace
from runtime.trace.timeline import Timeline


def sample() -> Timeline:
    timeline = Timeline()
    timeline.span("draft", "prepare", 10.001, 10.004)
    timeline.span("target", "verify", 10.0, 10.005)
    timeline.moment("hit", 10.0055, row=0, accepted=2)
    return timeline


def test_events_have_what_the_format_demands() -> None:
    events = trace_object(sample(), {})["traceEvents"]
    assert isinstance(events, list)
    spans = [event for event in events if event["ph"] == "X"]
    assert [(e["name"], e["ts"], e["dur"]) for e in spans] == [
        ("verify", 0.0, 5000.0),
        ("prepare", 1000.0, 3000.0),
    ]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert [names[e["tid"]] for e in spans] == ["target", "draft"]
    (hit,) = (event for event in events if event["ph"] == "i")
    assert (hit["name"], hit["ts"], hit["args"]) == ("hit", 5500.0, {"row": 0, "accepted": 2})
    assert all({"ph", "pid", "tid", "name"} <= event.keys() for event in events)


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    write_trace(sample(), path, {"mode": "ssd"})
    assert json.loads(path.read_text())["otherData"] == {"mode": "ssd", "num_dropped": 0}
    found = read_trace(path)
    assert [(s.lane, s.label) for s in found.spans] == [("target", "verify"), ("draft", "prepare")]
    assert [(m.label, dict(m.facts)) for m in found.moments] == [("hit", {"row": 0, "accepted": 2})]
    assert [path] == list(tmp_path.iterdir())


def test_an_empty_timeline_is_a_valid_trace(tmp_path: Path) -> None:
    write_trace(Timeline(), tmp_path / "t", {})
    assert read_trace(tmp_path / "t").spans == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing.t\.json' cannot be written"):
        write_trace(sample(), tmp_path / "missing" / "t.json", {})
    with pytest.raises(UsageError, match="--trace"):
        write_trace(sample(), tmp_path, {})
    with pytest.raises(UsageError, match="cannot be written"):
        write_trace(sample(), tmp_path / ("n" * 300), {})
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_is_not_replaced_and_a_link_is_followed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="no regular file"):
        write_trace(sample(), tmp_path / "pipe", {})
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_trace(sample(), tmp_path / "link", {})
    assert (tmp_path / "link").is_symlink()
    assert read_trace(tmp_path / "real").spans


def test_a_name_that_is_no_text_does_not_matter(tmp_path: Path) -> None:
    write_trace(sample(), tmp_path / "t", {})
    trace = json.loads((tmp_path / "t").read_text())
    next(event for event in trace["traceEvents"] if event["ph"] == "X")["name"] = {"a": 1}
    (tmp_path / "t").write_text(json.dumps(trace))
    assert "{'a': 1}" in {span.label for span in read_trace(tmp_path / "t").spans}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"traceEvents": [{"ph": "X"}]}',
        '{"traceEvents": 3}',
        "\x00",
        "[" * 30_000,
        '{"traceEvents": [{"ph": "i", "name": "hit", "args": {}, "ts": 1' + 400 * "0" + "}]}",
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(content)
    with pytest.raises(UsageError, match="no trace of ours"):
        read_trace(path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_trace(tmp_path / "absent")


def test_a_circle_of_links_is_refused_by_name(tmp_path: Path) -> None:
    circle = tmp_path / "circle.json"
    circle.symlink_to(circle)
    with pytest.raises(UsageError, match="cannot be written"):
        write_trace(Timeline(), circle, {})
