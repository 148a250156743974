"""Files that were damaged after a build: opening a bundle notices."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import engines.bundle
from engines.bundle import open_bundle
from engines.errors import BundleCorruptError, BundleError
from tests.engines.tiny_bundles import DATA, REBUILD, write_bundle, write_compiled


@pytest.mark.parametrize("hashes", ["small", "all"])
@pytest.mark.parametrize("change", [-1, -len(DATA), 1])
def test_a_data_file_of_another_size_is_always_noticed(
    tmp_path: Path, hashes: str, change: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines.bundle, "SMALL_FILE", 100)
    folder = write_bundle(tmp_path / "b")
    data = (DATA + b"x")[: len(DATA) + change]
    (folder / "target/model.onnx.data").write_bytes(data)
    with pytest.raises(BundleCorruptError) as caught:
        open_bundle(folder, hashes=hashes)  # type: ignore[arg-type]
    assert f"has {len(data)} bytes, expected {len(DATA)}" in str(caught.value)
    assert REBUILD in str(caught.value)


def test_large_files_are_hashed_only_on_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines.bundle, "SMALL_FILE", len(DATA))
    folder = write_bundle(tmp_path / "b")
    (folder / "target/model.onnx.data").write_bytes(b"!" + DATA[1:])
    open_bundle(folder)
    with pytest.raises(BundleCorruptError, match=r"model.onnx.data .*sha256"):
        open_bundle(folder, hashes="all")


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "chat_template.jinja", "draft/model.onnx", "draft/vocab_map.npy"]
)
def test_a_small_file_of_other_content_or_none_is_noticed(tmp_path: Path, name: str) -> None:
    folder = write_bundle(tmp_path / "b")
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(BundleCorruptError, match=name):
        open_bundle(folder)
    (folder / name).unlink()
    with pytest.raises(BundleCorruptError, match=name):
        open_bundle(folder)
    (folder / name).mkdir()
    with pytest.raises(BundleCorruptError, match=f"'{name}' .*not a regular file"):
        open_bundle(folder)


@pytest.mark.parametrize("damage", [b"", b"plan of targe", b"plan of tardet"])
def test_a_damaged_plan_is_noticed(tmp_path: Path, damage: bytes) -> None:
    folder = write_compiled(tmp_path / "b")
    (folder / "target/engine.plan").write_bytes(damage)
    with pytest.raises(BundleCorruptError, match=r"engine\.plan .*rebuild: python -m export"):
        open_bundle(folder)


def test_a_manifest_that_is_not_text_is_corrupt(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "b")
    (folder / "bundle.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(BundleCorruptError, match="UTF-8"):
        open_bundle(folder)


# Any single damage, drawn by hypothesis. -------------------------------------------------------

FILES = (
    "bundle.json",
    "target/manifest.json",
    "draft/manifest.json",
    "tokenizer.json",
    "chat_template.jinja",
    "target/model.onnx",
    "target/model.onnx.data",
    "draft/vocab_map.npy",
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=True)
    | st.text(max_size=8)
    | st.sampled_from(["../x", "/", ".", "target", "\0", "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2)
    ),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("pristine") / "b")


@pytest.fixture
def damaged(pristine: Path) -> Iterator[Path]:
    yield pristine
    shutil.rmtree(pristine)
    write_bundle(pristine)


MANY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def places(document: object) -> list[tuple[object, ...]]:
    """The way to every value inside a JSON document."""
    found: list[tuple[object, ...]] = []
    items: list[tuple[object, object]] = []
    if isinstance(document, dict):
        items = list(document.items())
    elif isinstance(document, list):
        items = list(enumerate(document))
    for key, value in items:
        found.append((key,))
        found += [(key, *rest) for rest in places(value)]
    return found


@MANY
@given(data=st.data())
@pytest.mark.parametrize("name", FILES[:3])
def test_one_changed_field_gives_a_bundle_error_or_a_bundle(
    damaged: Path, name: str, data: st.DataObject
) -> None:
    """Never another exception; in an engine's manifest, no change at all goes unnoticed."""
    path = damaged / name
    before = path.read_bytes()
    document = json.loads(before)
    *way, last = data.draw(st.sampled_from(places(document)))
    inside = document
    for key in way:
        inside = inside[key]
    if data.draw(st.booleans()):
        inside[last] = data.draw(VALUES)
    elif isinstance(inside, dict):
        inside[data.draw(st.text(max_size=4))] = inside.pop(last)
    else:
        del inside[last]
    after = json.dumps(document, indent=1, ensure_ascii=True).encode()
    path.write_bytes(after)
    try:
        if name == "bundle.json" or document == json.loads(before):
            with suppress(BundleError):
                open_bundle(damaged)
        else:
            with pytest.raises(BundleError) as caught:
                open_bundle(damaged)
            assert len(str(caught.value).splitlines()) == 1
    finally:
        path.write_bytes(before)


@MANY
@given(data=st.data())
def test_one_truncated_or_altered_file_gives_a_bundle_error(
    damaged: Path, data: st.DataObject
) -> None:
    path = damaged / data.draw(st.sampled_from(FILES))
    before = path.read_bytes()
    at = data.draw(st.integers(0, len(before) - 1))
    bit = data.draw(st.sampled_from([0, 1, 2, 4, 8, 16, 32, 64, 128]))
    after = before[:at] + bytes([before[at] ^ bit]) + before[at + 1 :] if bit else before[:at]
    path.write_bytes(after)
    try:
        if path.name == "bundle.json":  # the one file that nothing else vouches for
            with suppress(BundleError):
                open_bundle(damaged)
        else:
            with pytest.raises(BundleError):
                open_bundle(damaged)
    finally:
        path.write_bytes(before)


@given(st.data())
def test_a_truncated_bundle_manifest_never_opens(data: st.DataObject) -> None:
    text = _bundle_text()
    cut = data.draw(st.integers(0, len(text.rstrip()) - 1))
    with pytest.raises(BundleError):
        engines.bundle.load_bundle(text[:cut], "bundle.json")


def _bundle_text() -> str:
    from engines.manifest import dump
    from tests.engines.tiny_bundles import bundle_manifest

    return dump(bundle_manifest(draft=True))
