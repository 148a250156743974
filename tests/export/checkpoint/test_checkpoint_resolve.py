from __future__ import annotations

import sys
import types
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import pytest

from engines.errors import CheckpointError, MissingDependencyError, UnsupportedModelError
from export import fetch
from export.checkpoint.api import open_checkpoint
from export.checkpoint.resolve import resolve
from tests.helpers.checkpoints import make_llama


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SSD_TRT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_path_is_itself(tmp_path: Path) -> None:
    assert resolve(str(tmp_path)) == tmp_path


def test_default_checkpoint_not_fetched_names_the_command() -> None:
    with pytest.raises(CheckpointError, match=r"run: python -m export fetch smollm2-135m$"):
        resolve("smollm2-135m")


def test_default_checkpoint_once_fetched(empty_cache: Path) -> None:
    path = fetch.location("smollm2-135m")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    assert resolve("smollm2-135m") == path
    assert empty_cache in path.parents


def test_default_name_goes_before_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--target smollm2-135m` must not mean something else in another working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2-135m").mkdir()
    with pytest.raises(CheckpointError, match="fetch smollm2-135m"):
        resolve("smollm2-135m")
    assert resolve("./smollm2-135m") == Path("smollm2-135m")


@pytest.mark.parametrize("name", ["nothing", "/no/such/folder", "a/b/c", "", "-x/y", "../up"])
def test_what_is_nothing_lists_what_it_could_be(name: str) -> None:
    with pytest.raises(CheckpointError, match=r"smollm2-135m, smollm2-135m-draft.*ORG/NAME"):
        resolve(name)


Hub = Callable[[list[str]], list[str]]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A stand-in for huggingface_hub with one repository; returns the list of files it gave out."""

    def serve(files: list[str]) -> list[str]:
        given: list[str] = []

        def snapshot_download(repo_id: str, *, allow_patterns: list[str]) -> str:
            if repo_id != "org/name":
                raise RuntimeError("404 Client Error\n\nRepository Not Found")
            folder = tmp_path / "snapshot"
            folder.mkdir(exist_ok=True)
            for file in files:
                if any(fnmatch(file, pattern) for pattern in allow_patterns):
                    given.append(file)
                    (folder / file).parent.mkdir(exist_ok=True)
                    (folder / file).write_text("")
            return str(folder)

        module = types.ModuleType("huggingface_hub")
        module.snapshot_download = snapshot_download  # type: ignore[attr-defined]
        module.HfApi = lambda: types.SimpleNamespace(  # type: ignore[attr-defined]
            list_repo_files=lambda _repo_id: files
        )
        monkeypatch.setitem(sys.modules, "huggingface_hub", module)
        return given

    return serve


SAFE = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
SAFE += ["chat_template.jinja", "model.safetensors.index.json", "model-00001-of-00001.safetensors"]


def test_hub_id_downloads_what_is_read_and_no_code(tmp_path: Path, hub: Hub) -> None:
    other = ["modeling_llama.py", "pytorch_model.bin", "onnx/model.onnx", "README.md", "tf.h5"]
    other += ["original/consolidated.safetensors", "consolidated.safetensors", "x-Q4_1.gguf"]
    given = hub(SAFE + other)
    assert resolve("org/name") == tmp_path / "snapshot"
    assert sorted(given) == sorted(SAFE)


def test_hub_repository_of_one_gguf(tmp_path: Path, hub: Hub) -> None:
    given = hub(["config.json", "README.md", "model-Q8_0.gguf"])
    assert resolve("org/name") == tmp_path / "snapshot" / "model-Q8_0.gguf"
    assert given == ["config.json", "model-Q8_0.gguf"]


def test_hub_repository_of_many_gguf_files_is_not_downloaded_whole(hub: Hub) -> None:
    given = hub(["a-Q8_0.gguf", "a-Q4_1.gguf"])
    with pytest.raises(CheckpointError, match=r"holds 2 \.gguf files; download one"):
        resolve("org/name")
    assert given == []


def test_hub_repository_of_pickles_is_refused(hub: Hub) -> None:
    given = hub(["config.json", "pytorch_model.bin"])
    with pytest.raises(UnsupportedModelError, match="pickled weights are never opened"):
        resolve("org/name")
    assert given == ["config.json"]


def test_hub_failure_is_one_line(hub: Hub) -> None:
    hub([])
    with pytest.raises(CheckpointError, match=r"org/other from the model hub \(404") as error:
        resolve("org/other")
    assert "\n" not in str(error.value)


def test_hub_client_not_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingDependencyError, match=r"ssd-trt\[hub\]"):
        resolve("org/name")


@pytest.mark.parametrize(
    ("package", "make"),
    [
        ("safetensors", lambda folder: make_llama(folder)),
        ("gguf", lambda folder: folder / "x.gguf"),
    ],
)
def test_format_package_not_installed_names_the_extra(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    package: str,
    make: Callable[[Path], Path],
) -> None:
    path = make(tmp_path)
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=rf"package {package}, .*ssd-trt\[export\]"):
        open_checkpoint(path)
