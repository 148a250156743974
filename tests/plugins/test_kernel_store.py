"""The store of compiled kernels: whole entries or none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engines.errors import UsageError
from plugins import store
from plugins.store import ROOT, KernelStore, key_of, source_files


@pytest.fixture
def kept(tmp_path: Path) -> KernelStore:
    return KernelStore(tmp_path / "kernels")


def test_what_was_put_is_found(kept: KernelStore) -> None:
    assert kept.get("a") is None
    kept.put("a", "cubin", b"code", {"entries": [1]})
    found = kept.get("a")
    assert found is not None
    assert found.path.read_bytes() == b"code"
    assert found.note["entries"] == [1]
    assert kept.get("b") is None
    assert not list(kept.folder.glob(".new-*"))


def test_where_nothing_can_be_put_is_seen_before(tmp_path: Path) -> None:
    assert KernelStore(tmp_path / "a" / "b").why_not_writable() == ""
    assert list(tmp_path.iterdir()) == [], "nothing is made by asking"
    (tmp_path / "file").write_text("")
    reason = KernelStore(tmp_path / "file" / "b").why_not_writable()
    assert f"({tmp_path / 'file'} is a file); name another folder in SSD_TRT_CACHE" in reason


@pytest.mark.parametrize(
    "damage",
    [
        lambda note, _: note.unlink(),
        lambda _, file: file.unlink(),
        lambda _, file: file.write_bytes(b"cod"),
        lambda _, file: file.write_bytes(b"core"),
        lambda note, _: note.write_bytes(b""),
        lambda note, _: note.write_text("[1]"),
        lambda note, _: note.write_text("{}"),
        lambda note, _: note.write_text(json.dumps({"file": 5})),
        lambda note, _: note.write_bytes(b"\xff\xfe"),
    ],
)
def test_a_damaged_entry_counts_as_absent(kept: KernelStore, damage) -> None:
    entry = kept.put("a", "cubin", b"code", {})
    damage(kept.folder / "a.json", entry.path)
    assert kept.get("a") is None
    kept.put("a", "cubin", b"code", {})
    assert kept.get("a") is not None


def test_a_write_that_fails_leaves_nothing(
    kept: KernelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(UsageError, match=r"No space left.*SSD_TRT_CACHE"):
        kept.put("a", "cubin", b"code", {})
    assert list(kept.folder.iterdir()) == []


def test_a_key_covers_the_source_its_includes_and_the_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "ROOT", tmp_path)
    header, other, source = (tmp_path / name for name in ("a.cuh", "b.cuh", "kernel.cu"))
    header.write_text('#include "b.cuh"\n#include <thread>\n')
    other.write_text('#include "a.cuh"  // a circle\n')
    source.write_text('#include "a.cuh"\n')
    assert source_files(source) == [source, header, other]
    keys = {key_of(source, ["x"]), key_of(source, ["y"]), key_of(source, ["x", ""])}
    for file in (header, other, source):
        file.write_text(file.read_text() + "\n")
        keys.add(key_of(source, ["x"]))
    assert len(keys) == 6


def test_an_include_that_is_not_there_is_named(tmp_path: Path) -> None:
    source = tmp_path / "kernel.cu"
    source.write_text('#include "plugins/cuda/typo.cuh"\n')
    with pytest.raises(UsageError, match=r"kernel\.cu includes plugins/cuda/typo\.cuh"):
        source_files(source)


def test_kernels_include_the_block_context() -> None:
    files = source_files(ROOT / "plugins" / "lookup" / "kernel.cu")
    assert {"block.cuh", "types.cuh", "device_context.cuh", "host_context.cuh"} <= {
        file.name for file in files
    }
