"""What opens as a bundle and what does not: manifests that disagree, ways out of its folder."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import engines.bundle
from engines.bundle import open_bundle, seal_bundle
from engines.errors import BundleCorruptError, BundleIncompatibleError, BundleMissingError
from engines.manifest import load_bundle
from tests.engines.tiny_bundles import write_bundle, write_compiled
from tests.helpers.users import as_nobody


def edit(path: Path, **changes: object) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**document, **changes}), encoding="utf-8")


def test_a_pair_opens_with_everything_a_runtime_asks_for(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "b")
    bundle = open_bundle(str(folder), hashes="all")
    assert bundle.path == folder
    assert [engine.role for engine in bundle.engines] == ["target", "draft"]
    assert bundle.model_path("draft") == folder / "draft/model.onnx"
    assert bundle.vocab_map_path() == folder / "draft/vocab_map.npy"
    assert bundle.tokenizer_path.read_text(encoding="utf-8") == '{"model": {}}'
    template = bundle.chat_template_path
    assert template is not None
    assert template.read_text(encoding="utf-8") == "{{ messages }}"
    on_disk = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    assert bundle.num_bytes == on_disk - (folder / "bundle.json").stat().st_size


def test_a_target_alone_opens_and_ignores_a_folder_called_draft(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "b", draft=False)
    (folder / "draft").mkdir()
    bundle = open_bundle(folder)
    assert bundle.draft is None
    assert bundle.vocab_map_path() is None
    assert [engine.role for engine in bundle.engines] == ["target"]


def test_a_moved_bundle_opens_relative_to_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_bundle(tmp_path / "b")
    shutil.move(folder, tmp_path / "elsewhere é")
    monkeypatch.chdir(tmp_path)
    assert open_bundle("elsewhere é", hashes="all").path == Path("elsewhere é")


def test_a_link_to_a_bundle_opens(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b")
    (tmp_path / "link").symlink_to("b")
    assert open_bundle(tmp_path / "link", hashes="all").target.role == "target"


def test_no_bundle_names_the_build_command(tmp_path: Path) -> None:
    with pytest.raises(BundleMissingError, match=r"no bundle at .*nowhere; .*-m export build"):
        open_bundle(tmp_path / "nowhere")
    (tmp_path / "folder").mkdir()
    with pytest.raises(BundleMissingError, match=r"is not a bundle .*-m export build"):
        open_bundle(tmp_path / "folder")
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(BundleMissingError):
        open_bundle(tmp_path / "file")


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000])
def test_an_unspeakable_path_is_a_missing_bundle(name: str) -> None:
    with pytest.raises(BundleMissingError):
        open_bundle(name)


def test_an_edited_engine_manifest_does_not_pass_for_the_built_one(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "b")
    edit(folder / "target/manifest.json", precision="int8")
    with pytest.raises(BundleCorruptError, match=r"target/manifest.json"):
        open_bundle(folder)


def test_an_engine_of_another_version_says_so_and_not_just_that_it_changed(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "b")
    edit(folder / "target/manifest.json", schema=1)
    with pytest.raises(BundleIncompatibleError, match="schema 1, this version reads schema 3"):
        open_bundle(folder)


@pytest.mark.parametrize("keep_onnx", [True, False])
def test_a_compiled_bundle_needs_its_plans_and_not_its_graphs(
    tmp_path: Path, keep_onnx: bool
) -> None:
    folder = write_compiled(tmp_path / "b", keep_onnx=keep_onnx)
    bundle = open_bundle(folder, hashes="all")
    assert bundle.plan_path("draft") == folder / "draft/engine.plan"
    (folder / "draft/engine.plan").unlink()
    with pytest.raises(BundleCorruptError, match=r"lacks its file .draft/engine\.plan"):
        open_bundle(folder)


def test_an_engine_that_runs_from_its_graph_has_no_plan(tmp_path: Path) -> None:
    bundle = open_bundle(write_bundle(tmp_path / "b", draft=False))
    assert bundle.plan_path("target") is None
    assert bundle.plan_path("draft") is None


def test_an_unlisted_plan_is_noticed(tmp_path: Path) -> None:
    folder = write_compiled(tmp_path / "b")
    path = folder / "target/manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    files = [file for file in manifest["files"] if file["path"] != "engine.plan"]
    edit(path, files=files)
    with pytest.raises(BundleCorruptError, match=r"does not list engine\.plan"):
        open_bundle(folder)


def reseal(folder: Path, change: Callable[[dict], object]) -> None:
    """Edit the target's manifest and let the bundle's list vouch for it."""
    path = folder / "target/manifest.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(json.dumps(document), encoding="utf-8")
    manifest = load_bundle((folder / "bundle.json").read_text(encoding="utf-8"), "b")
    seal_bundle(folder, replace(manifest, files=()))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["inputs"].pop(), "other inputs than such an engine, first kv.1.value"),
        (lambda d: d["outputs"].pop(0), "other outputs than such an engine, first logits"),
        (lambda d: d["outputs"][0].update(name="x"), "other outputs than such an engine"),
        (
            lambda d: (d["kv"].update(num_layers=2**31), d["model"].update(num_layers=2**31)),
            "10 inputs for 2147483648 layers",
        ),
        (lambda d: d["kv"].update(num_layers=3), "other inputs than such an .*, first kv.2.key"),
        (lambda d: d.update(precision="int8"), "has precision int8, the bundle has fp32"),
    ],
)
def test_an_engine_without_an_input_that_it_needs_is_corrupt(
    tmp_path: Path, change: Callable[[dict], object], words: str
) -> None:
    folder = write_bundle(tmp_path / "b")
    reseal(folder, lambda _document: None)
    open_bundle(folder)
    reseal(folder, change)
    with pytest.raises(BundleCorruptError, match=words):
        open_bundle(folder)


@pytest.mark.parametrize(
    ("closed", "error"),
    [("target", BundleCorruptError), ("", BundleMissingError), ("bundle.json", BundleCorruptError)],
)
def test_a_bundle_that_may_not_be_read_says_so(closed: str, error: type[Exception]) -> None:
    """A closed folder was told as one that lacks its files, to be built anew."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        folder = write_bundle(Path(name) / "b")
        (folder / closed).chmod(0)
        words = rf"cannot .*: Permission denied; .*: chmod -R a\+rX {re.escape(str(folder))}$"
        try:
            with as_nobody(), pytest.raises(error, match=words):
                open_bundle(folder)
        finally:
            (folder / closed).chmod(0o755)


def test_the_draft_of_another_bundle_is_refused(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "b")
    shutil.rmtree(folder / "draft")
    shutil.copytree(folder / "target", folder / "draft")
    with pytest.raises(BundleCorruptError, match="role target, the bundle has draft"):
        open_bundle(folder)


def test_a_file_the_engine_needs_must_be_listed(tmp_path: Path) -> None:
    """Or it would be loaded unchecked."""
    folder = write_bundle(tmp_path / "b")
    path = folder / "target/manifest.json"
    files = json.loads(path.read_text(encoding="utf-8"))["files"]
    edit(path, files=[file for file in files if file["path"] != "model.onnx"])
    with pytest.raises(BundleCorruptError, match=r"does not list model.onnx"):
        open_bundle(folder)


@pytest.mark.parametrize("path", ["../secret", "/etc/hostname", "target/../../secret"])
def test_a_manifest_cannot_name_files_outside(tmp_path: Path, path: str) -> None:
    (tmp_path / "secret").write_text("s", encoding="utf-8")
    folder = write_bundle(tmp_path / "b")
    edit(folder / "bundle.json", tokenizer=path)
    with pytest.raises(BundleCorruptError, match="leaves the bundle"):
        open_bundle(folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "target/model.onnx.data", "bundle.json"])
def test_a_link_out_of_the_bundle_is_not_followed(tmp_path: Path, name: str) -> None:
    folder = write_bundle(tmp_path / "b")
    shutil.copy(folder / name, tmp_path / "outside")
    (folder / name).unlink()
    (folder / name).symlink_to(tmp_path / "outside")
    with pytest.raises(BundleCorruptError, match="leads out of the bundle"):
        open_bundle(folder)


def test_a_linked_engine_folder_is_not_followed(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "b")
    (folder / "target").rename(tmp_path / "target")
    (folder / "target").symlink_to(tmp_path / "target")
    with pytest.raises(BundleCorruptError, match="leads out of the bundle"):
        open_bundle(folder)


def test_a_ring_of_links_is_corrupt(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "b")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").symlink_to("tokenizer.json")
    with pytest.raises(BundleCorruptError):
        open_bundle(folder)


def test_an_unreadable_file_is_an_error_of_the_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> str:
        raise PermissionError(13, "Permission denied", path)

    folder = write_bundle(tmp_path / "b")
    monkeypatch.setattr(engines.bundle, "sha256_of", refuse)
    with pytest.raises(BundleCorruptError, match="Permission denied"):
        open_bundle(folder)
