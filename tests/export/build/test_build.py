"""A build and its place: what is built again, what is replaced, what a failure leaves."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import export.build.plan
from engines.bundle import open_bundle
from engines.errors import BackendError, CheckpointError, UsageError
from export.build.build import BuildGraph, build
from export.build.options import BuildOptions
from export.checkpoint.api import Checkpoint
from tests.export.build.fake_graph import Recorder, fake_graph, never
from tests.helpers.checkpoints import make_draft, make_llama


@pytest.fixture
def options(tmp_path: Path) -> BuildOptions:
    target = make_llama(tmp_path / "target", hidden=64)
    draft = make_draft(tmp_path / "draft", hidden=64)
    return BuildOptions(
        str(target), str(draft), tmp_path / "out" / "b", max_len=64, num_draft=2, max_branches=4
    )


def content(folder: Path) -> dict[str, str]:
    """Every file below a folder, hidden ones included, with a hash."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def fail_with(error: BaseException) -> BuildGraph:
    def fail(_folder: Path) -> None:
        raise error

    return partial(fake_graph, before_save=fail)


def test_a_built_bundle_says_what_it_was_built_from_and_for(options: BuildOptions) -> None:
    recorder = Recorder()
    result = build(options, reporter=recorder, build_graph=fake_graph)
    assert not result.cache_hit
    bundle = open_bundle(options.place, hashes="all")
    assert bundle == result.bundle
    manifest, draft = bundle.manifest, bundle.draft
    assert draft is not None
    assert manifest.name == "b"
    assert manifest.limits == bundle.target.limits == draft.limits == options.limits
    assert manifest.special_tokens["eos_token"] == "<|im_end|>"
    assert manifest.rebuild == options.command()
    assert bundle.target.source.name == options.target
    assert draft.source.name == options.draft
    assert (bundle.target.kv.scratch_rows, draft.kv.scratch_rows) == (0, 8)
    assert bundle.target.lengths[-1] == 80
    assert (bundle.target.vocab_map, draft.vocab_map) == (None, "vocab_map.npy")
    assert (draft.model.vocab_size, draft.model.output_vocab) == (320, 300)
    source = Path(options.target)
    assert bundle.tokenizer_path.read_bytes() == (source / "tokenizer.json").read_bytes()
    map_path = bundle.vocab_map_path()
    assert map_path is not None
    assert np.load(map_path).dtype == np.int32
    assert ("target layers", 1, 1) in recorder.steps
    assert ("draft layers", 1, 1) in recorder.steps
    assert "ready" in recorder.lines[-1]


def test_a_target_alone_without_a_template_is_a_bundle_too(tmp_path: Path) -> None:
    target = make_llama(tmp_path / "t", hidden=64, chat_template=False)
    options = BuildOptions(str(target), out=tmp_path / "b", max_len=64)
    bundle = build(options, build_graph=fake_graph).bundle
    assert bundle.draft is None
    assert bundle.chat_template_path is None
    assert not (tmp_path / "b" / "draft").exists()


def test_a_bundle_is_readable_by_whom_the_umask_allows(options: BuildOptions) -> None:
    """A temporary folder's private mode must not stay on the published one."""
    build(options, build_graph=fake_graph)
    expected = (Path(options.target)).stat().st_mode
    for folder in (options.place, options.place / "target"):
        assert folder.stat().st_mode == expected


def test_the_same_build_again_is_a_cache_hit_that_says_so(options: BuildOptions) -> None:
    build(options, build_graph=fake_graph)
    before, recorder = content(options.place), Recorder()
    result = build(options, reporter=recorder, build_graph=never)
    assert result.cache_hit
    assert content(options.place) == before
    assert "cache hit" in recorder.lines[-1]


@pytest.mark.parametrize(
    "change",
    [
        {"precision": "fp32"},
        {"block": 32},
        {"max_len": 48},
        {"max_batch": 2},
        {"num_draft": 3},
        {"max_branches": 5},
        {"draft": None},
    ],
)
def test_a_build_for_something_else_replaces_the_bundle(
    options: BuildOptions, change: dict[str, Any]
) -> None:
    build(options, build_graph=fake_graph)
    other = dataclasses.replace(options, **change)
    assert not build(other, build_graph=fake_graph).cache_hit
    assert build(other, build_graph=never).cache_hit
    assert open_bundle(options.place, hashes="all").manifest.rebuild == other.command()
    assert [entry.name for entry in options.place.parent.iterdir()] == ["b"]


def test_a_changed_checkpoint_is_built_again_under_the_same_name(
    options: BuildOptions, tmp_path: Path
) -> None:
    first = build(options, build_graph=fake_graph).bundle
    make_llama(tmp_path / "target", hidden=64, seed=1)
    second = build(options, build_graph=fake_graph)
    assert not second.cache_hit
    assert second.bundle.target.source.fingerprint != first.target.source.fingerprint


def test_the_name_of_a_checkpoint_is_no_reason_to_build_again(
    options: BuildOptions, tmp_path: Path
) -> None:
    build(options, build_graph=fake_graph)
    (tmp_path / "target").rename(tmp_path / "renamed")
    moved = dataclasses.replace(options, target=str(tmp_path / "renamed"))
    assert build(moved, build_graph=never).cache_hit


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "manifest"])
def test_a_damaged_bundle_is_no_cache_hit_and_is_mended(
    options: BuildOptions, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engines.bundle.SMALL_FILE", 0)  # a hit must not rest on sizes alone
    build(options, build_graph=fake_graph)
    before = content(options.place)
    data = options.place / "target/model.onnx.data"
    if damage == "flip":
        data.write_bytes(b"!" * data.stat().st_size)
    elif damage == "truncate":
        data.write_bytes(b"")
    elif damage == "remove":
        data.unlink()
    else:
        (options.place / "bundle.json").write_text("{", encoding="utf-8")
    assert not build(options, build_graph=fake_graph).cache_hit
    assert content(options.place) == before


FAILURES: list[tuple[BaseException, type[BaseException], str]] = [
    (OSError(errno.ENOSPC, "No space left"), UsageError, "the disk filled up while"),
    (OSError(errno.EDQUOT, "Quota"), UsageError, "the disk filled up while"),
    (OSError(errno.EACCES, "Permission denied", "f"), UsageError, r"Permission denied \(f\)"),
    (OSError("7 requested and 3 written"), UsageError, "7 requested and 3 written"),
    (CheckpointError("w holds NaN"), CheckpointError, "w holds NaN"),
    (KeyboardInterrupt("^C"), KeyboardInterrupt, r"\^C"),
    (AssertionError("a bug"), AssertionError, "a bug"),
]


@pytest.mark.parametrize(("error", "kind", "words"), FAILURES)
def test_a_failed_build_leaves_the_place_as_it_was(
    options: BuildOptions, error: BaseException, kind: type[BaseException], words: str
) -> None:
    with pytest.raises(kind, match=words):
        build(options, build_graph=fail_with(error))
    assert list(options.place.parent.iterdir()) == []
    build(options, build_graph=fake_graph)
    before = content(options.place.parent)
    with pytest.raises(kind, match=words):
        build(dataclasses.replace(options, max_batch=2), build_graph=fail_with(error))
    assert content(options.place.parent) == before
    assert build(options, build_graph=never).cache_hit


def test_a_full_disk_is_recognised_behind_a_librarys_own_error(options: BuildOptions) -> None:
    def fail(_folder: Path) -> None:
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as error:
            raise RuntimeError("cannot serialise") from error

    with pytest.raises(UsageError, match="the disk filled up"):
        build(options, build_graph=partial(fake_graph, before_save=fail))


def test_a_disk_that_is_too_small_is_noticed_before_any_work(
    options: BuildOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export.build.plan, "free_disk", lambda _folder: 1000)
    with pytest.raises(UsageError, match=r"needs .* kB, the disk has 1.0 kB free"):
        build(options, build_graph=never)


def test_a_machine_that_looks_too_small_is_a_warning(
    options: BuildOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export.build.plan, "free_memory", lambda: 1000)
    recorder = Recorder()
    build(options, reporter=recorder, build_graph=fake_graph)
    assert any("warning" in line and "1.0 kB are free" in line for line in recorder.lines)


def test_a_folder_that_is_no_bundle_is_never_replaced(options: BuildOptions) -> None:
    options.place.mkdir(parents=True)
    (options.place / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match=r"is not a bundle \(it holds notes.txt\)"):
        build(options, build_graph=never)
    assert (options.place / "notes.txt").read_text(encoding="utf-8") == "mine"


def test_a_bundle_with_a_file_of_the_users_in_it_is_never_replaced(options: BuildOptions) -> None:
    build(options, build_graph=fake_graph)
    (options.place / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match=r"notes.txt"):
        build(dataclasses.replace(options, max_len=48), build_graph=never)
    assert (options.place / "notes.txt").exists()


def test_an_empty_folder_is_filled_and_a_file_is_refused(options: BuildOptions) -> None:
    options.place.mkdir(parents=True)
    build(options, build_graph=fake_graph)
    assert open_bundle(options.place).draft is not None
    file = options.place.with_name("file")
    file.write_text("x", encoding="utf-8")
    with pytest.raises(UsageError, match="is a file, not a folder"):
        build(dataclasses.replace(options, out=file), build_graph=never)
    inside = dataclasses.replace(options, out=file / "b")
    with pytest.raises(UsageError, match=r"cannot write .*--out"):
        build(inside, build_graph=never)


def test_a_bundle_behind_a_link_is_replaced_where_it_stands(
    options: BuildOptions, tmp_path: Path
) -> None:
    build(options, build_graph=fake_graph)
    (tmp_path / "link").symlink_to(options.place)
    linked = dataclasses.replace(options, out=tmp_path / "link", max_len=48)
    build(linked, build_graph=fake_graph)
    assert (tmp_path / "link").is_symlink()
    assert open_bundle(options.place).manifest.limits.max_len == 48


def test_verification_sees_the_bundle_before_anybody_else(options: BuildOptions) -> None:
    seen = []

    def verify(path: Path, target: Checkpoint, draft: Checkpoint | None) -> str:
        assert not options.place.exists()
        seen.append((open_bundle(path, hashes="all").manifest.name, target, draft))
        return "checked"

    result = build(options, build_graph=fake_graph, verify=verify)
    assert result.verification == "checked"
    name, target, draft = seen[0]
    assert name == "b"
    assert target.fingerprint() == result.bundle.target.source.fingerprint
    assert draft is not None
    assert result.bundle.draft is not None
    assert draft.fingerprint() == result.bundle.draft.source.fingerprint


def test_a_bundle_that_fails_verification_is_not_published(options: BuildOptions) -> None:
    def verify(_path: Path, _target: object, _draft: object) -> None:
        raise BackendError("wrong logits")

    with pytest.raises(BackendError, match="wrong logits"):
        build(options, build_graph=fake_graph, verify=verify)
    assert list(options.place.parent.iterdir()) == []
    build(options, build_graph=fake_graph)
    with pytest.raises(BackendError, match="wrong logits"):
        build(options, build_graph=never, verify=verify)


def test_different_rope_bases_are_said_not_refused(tmp_path: Path) -> None:
    """V10."""
    target = make_llama(tmp_path / "t", hidden=64, rope_theta=5e5)
    draft = make_llama(tmp_path / "d", hidden=64, layers=1)
    options = BuildOptions(str(target), str(draft), tmp_path / "b", max_len=64)
    recorder = Recorder()
    build(options, reporter=recorder, build_graph=fake_graph)
    assert any("rope_theta is 10000 in the draft and 500000" in line for line in recorder.lines)
