"""Which weights peers run, when nobody names them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from engines.bundle import Bundle
from engines.errors import UsageError
from runtime.bench.dataset.peers.weights import find_weights
from tests.helpers.tiny_bundle import tiny_bundle


def built_by(command: str) -> Bundle:
    bundle = tiny_bundle()
    return dataclasses.replace(
        bundle, manifest=dataclasses.replace(bundle.manifest, rebuild=command)
    )


def test_the_path_that_the_bundle_was_built_from(tmp_path: Path) -> None:
    path = tmp_path / "a model.gguf"
    path.touch()
    bundle = built_by(f"python -m export build --target '{path}' --out x")
    assert find_weights(bundle, None) == path
    assert find_weights(tiny_bundle(), None).is_dir()


def test_a_name_is_that_of_a_file_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSD_TRT_CACHE", str(tmp_path))
    bundle = built_by("python -m export build --target some-model --out x")
    with pytest.raises(UsageError, match=r"\(some-model\) is not on this machine.*--peer-model"):
        find_weights(bundle, None)
    path = tmp_path / "some-model" / "weights.gguf"
    path.parent.mkdir()
    path.touch()
    assert find_weights(bundle, None) == path


@pytest.mark.parametrize("command", ["", "python -m export build --target", "--target none/such"])
def test_a_command_that_says_nothing_is_no_folder_of_the_cache(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSD_TRT_CACHE", str(tmp_path))
    (tmp_path / "stray.gguf").touch()
    with pytest.raises(UsageError, match="--peer-model"):
        find_weights(built_by(command), None)


def test_what_is_named_comes_first(tmp_path: Path) -> None:
    assert find_weights(tiny_bundle(), tmp_path) == tmp_path
    with pytest.raises(UsageError, match=r"absent\.gguf is not there"):
        find_weights(tiny_bundle(), tmp_path / "absent.gguf")
