from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from engines.bundle import Bundle
from engines.errors import CheckpointError, UsageError
from export.build.build import build
from export.build.options import BuildOptions
from export.check.sources import find_draft, find_target
from tests.helpers.checkpoints import make_draft, make_llama


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return built(tmp_path, draft=str(make_draft(tmp_path / "d")))


def built(tmp_path: Path, draft: str | None) -> Bundle:
    options = BuildOptions(
        str(make_llama(tmp_path / "t")),
        draft,
        out=tmp_path / "b",
        precision="fp32",
        max_len=96,
        num_draft=2,
        max_branches=2,
    )
    return build(options).bundle


def test_the_checkpoint_is_found_under_the_name_it_was_built_with(
    tmp_path: Path, bundle: Bundle
) -> None:
    assert find_target(bundle, None).fingerprint() == bundle.target.source.fingerprint
    (tmp_path / "t").rename(tmp_path / "moved")
    with pytest.raises(CheckpointError, match=r"not found under its name then: .*--target"):
        find_target(bundle, None)
    found = find_target(bundle, str(tmp_path / "moved"))
    assert found.fingerprint() == bundle.target.source.fingerprint
    with pytest.raises(CheckpointError):
        find_target(bundle, str(tmp_path / "nowhere"))


def test_another_checkpoint_under_the_same_name_is_refused(tmp_path: Path, bundle: Bundle) -> None:
    """Comparing with it would blame the engine."""
    make_llama(tmp_path / "t", seed=1)
    with pytest.raises(CheckpointError, match=r"is not the checkpoint that .* was built from"):
        find_target(bundle, None)
    other = make_llama(tmp_path / "other", seed=2)
    with pytest.raises(CheckpointError, match="is not the checkpoint"):
        find_target(bundle, str(other))


@pytest.mark.parametrize("name", ["", "no/such/checkpoint/anywhere"])
def test_a_checkpoint_asked_for_by_name_must_be_there(bundle: Bundle, name: str) -> None:
    for find in (find_target, find_draft):
        with pytest.raises(CheckpointError, match=f"no checkpoint '{name}'"):
            find(bundle, name)


def test_the_drafts_checkpoint_is_found_or_missed_in_a_line(tmp_path: Path, bundle: Bundle) -> None:
    assert bundle.draft is not None
    found, note = find_draft(bundle, None)
    assert found is not None
    assert (found.fingerprint(), note) == (bundle.draft.source.fingerprint, None)
    (tmp_path / "d").rename(tmp_path / "moved")
    found, note = find_draft(bundle, None)
    assert found is None
    assert note is not None
    assert note.startswith("the draft was not checked: the checkpoint of the draft in ")
    assert note.endswith("name it with --draft")
    found, note = find_draft(bundle, str(tmp_path / "moved"))
    assert (found is None, note) == (False, None)


def test_another_draft_is_not_compared_with(tmp_path: Path, bundle: Bundle) -> None:
    make_draft(tmp_path / "d", seed=5)
    found, note = find_draft(bundle, None)
    assert found is None
    assert note is not None
    assert "is not the checkpoint that the draft in" in note
    with pytest.raises(CheckpointError, match="name the right one with --draft"):
        find_draft(bundle, str(tmp_path / "d"))


def test_a_draft_kept_on_a_hub_that_cannot_be_asked_is_a_note(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target can be checked without the package that fetches from there."""
    assert bundle.draft is not None
    source = replace(bundle.draft.source, name="org/draft")
    elsewhere = replace(bundle, draft=replace(bundle.draft, source=source))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    found, note = find_draft(elsewhere, None)
    assert found is None
    assert note is not None
    assert "ssd-trt[hub]" in note


def test_a_bundle_without_a_draft_has_none_to_find(tmp_path: Path) -> None:
    bundle = built(tmp_path, draft=None)
    assert find_draft(bundle, None) == (None, None)
    with pytest.raises(UsageError, match="has no draft; leave --draft out"):
        find_draft(bundle, str(tmp_path / "t"))
