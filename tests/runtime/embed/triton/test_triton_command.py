"""``python -m runtime embed --triton DIR``: a repository, whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from engines.bundle import open_bundle
from runtime.cli.entry import main
from runtime.embed.staging import staged
from runtime.embed.triton.repository import MODEL
from tests.helpers.killed import kill_itself
from tests.helpers.tiny_bundle import tiny_bundle
from tests.helpers.triton_config import read_config

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command over the tiny bundle, into ``tmp_path/models``; a None leaves an option away."""

    def call(*more: str, bundle: Path | None = None, **options: object) -> tuple[int, str, str]:
        given = {
            "--triton": tmp_path / "models",
            "--bundle": bundle or tiny_bundle(max_batch=3).path,
            "--model-name": "tiny",
        }
        given |= {"--" + name.replace("_", "-"): value for name, value in options.items()}
        words = [str(word) for pair in given.items() if pair[1] is not None for word in pair]
        code = main(["embed", *words, *more])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def everything(folder: Path) -> list[str]:
    return sorted(each.relative_to(folder).as_posix() for each in folder.rglob("*"))


def test_the_repository_is_what_a_server_reads(run: Run, tmp_path: Path) -> None:
    code, out, err = run(mode="sd", num_draft=2, batch=2, max_waiting=9, device="cpu")
    folder = tmp_path / "models" / "tiny"
    assert code == 0
    assert out.startswith(f"{folder}: ")
    assert "tritonserver --model-repository" in err
    assert os.listdir(tmp_path / "models") == ["tiny"]
    assert {"config.pbtxt", "1"} == set(os.listdir(folder))
    assert (folder / "1" / "model.py").read_text(encoding="utf-8") == MODEL
    open_bundle(folder / "1" / "bundle", hashes="all")
    config = read_config(folder / "config.pbtxt")
    assert config["name"] == "tiny"
    written = {name: each["string_value"] for name, each in config["parameters"].items()}
    assert written == {
        "bundle": "bundle",
        "mode": "sd",
        "verify": "coupled",
        "drafter": "auto",
        "fallback": "auto",
        "num_draft": "2",
        "max_batch": "2",
        "device": "cpu",
        "max_waiting": "9",
        "drain_timeout_s": "30",
    }


def test_the_record_says_what_was_written(run: Run, tmp_path: Path) -> None:
    code, out, err = run("--json")
    record = json.loads(out)
    bundle = tiny_bundle(max_batch=3)
    assert (code, err) == (0, "")
    assert record["model"] == "tiny"
    assert record["folder"] == str(tmp_path / "models" / "tiny")
    assert record["instance_kind"] == "KIND_CPU"
    assert record["num_bytes"] == bundle.num_bytes
    written = [each for each in everything(tmp_path / "models/tiny/1/bundle") if "." in each]
    assert record["num_files"] == len(written)


def test_quiet_leaves_the_result(run: Run, tmp_path: Path) -> None:
    code, out, err = run("--quiet")
    assert (code, err) == (0, "")
    assert out.startswith(str(tmp_path / "models" / "tiny"))


def test_the_models_name_is_the_bundle_folders(run: Run, tmp_path: Path) -> None:
    shutil.copytree(tiny_bundle(max_batch=3).path, tmp_path / "my-pair")
    assert run(bundle=tmp_path / "my-pair", model_name=None)[0] == 0
    assert os.listdir(tmp_path / "models") == ["my-pair"]


def test_only_the_bundles_own_files_are_taken(run: Run, tmp_path: Path) -> None:
    """What a user keeps in its folder may be private, and a link would lead outside."""
    copy = tmp_path / "pair"
    shutil.copytree(tiny_bundle(max_batch=3).path, copy)
    (copy / "notes.txt").write_text("private")
    model = copy / "target" / "model.onnx"
    model.rename(copy / "target" / "real.onnx")
    model.symlink_to("real.onnx")
    assert run(bundle=copy)[0] == 0
    placed = tmp_path / "models" / "tiny" / "1" / "bundle"
    assert not (placed / "notes.txt").exists()
    assert not any(each.is_symlink() for each in placed.rglob("*"))
    open_bundle(placed, hashes="all")


@pytest.mark.parametrize("has_links", [True, False])
def test_files_are_links_where_the_disk_has_them(run, tmp_path, monkeypatch, has_links) -> None:
    """Either way it is a bundle of its own: the first one's folder may go."""
    copy = tmp_path / "pair"
    shutil.copytree(tiny_bundle(max_batch=3).path, copy)

    def refuse(*_args: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    if not has_links:
        monkeypatch.setattr(os, "link", refuse)
    record = json.loads(run("--json", bundle=copy)[1])
    assert record["num_linked"] == (record["num_files"] if has_links else 0)
    shutil.rmtree(copy)
    open_bundle(tmp_path / "models" / "tiny" / "1" / "bundle", hashes="all")


def test_an_environment_is_named_to_the_server(run: Run, tmp_path: Path) -> None:
    run(execution_env="$$TRITON_MODEL_DIRECTORY/env.tar.gz")
    config = read_config(tmp_path / "models" / "tiny" / "config.pbtxt")
    found = config["parameters"]["EXECUTION_ENV_PATH"]["string_value"]
    assert found == "$$TRITON_MODEL_DIRECTORY/env.tar.gz"


def test_on_a_gpu_the_model_chooses_its_devices(run: Run, tmp_path: Path) -> None:
    assert run(device="cuda:0,cuda:1", drafter="model")[0] == 0
    config = read_config(tmp_path / "models" / "tiny" / "config.pbtxt")
    assert config["instance_group"][0]["kind"] == "KIND_MODEL"
    assert config["parameters"]["device"]["string_value"] == "cuda:0,cuda:1"


@pytest.mark.parametrize(
    ("more", "options", "told"),
    [
        ([], {"bundle": Path("nowhere")}, "no bundle at nowhere"),
        ([], {"bundle": Path(__file__).parent}, "is not a bundle"),
        ([], {"model_name": "a/b"}, "'a/b' is no name for a model"),
        ([], {"model_name": ".hidden"}, "'.hidden' is no name for a model"),
        ([], {"model_name": "x" * 201}, "is no name for a model"),
        ([], {"batch": 4}, "built for 3"),
        ([], {"num_draft": 99}, "99"),
        ([], {"mode": "sd", "branches": 2}, "--branches has no effect in mode sd"),
        ([], {"mode": "ssd", "drafter": "lookup"}, "--drafter lookup does without"),
        ([], {"device": "tpu"}, "tpu"),
        ([], {"device": "cuda:0", "drafter": "lookup"}, "no round on a GPU waits"),
        ([], {"device": "cuda:0", "verify": "ratio", "drafter": "model"}, "--verify"),
        ([], {"max_waiting": -1}, "not a whole number >= 0"),
        (["--out", "x"], {}, "--out"),
        (["--out", "x"], {"triton": None}, "--bundle goes with --triton"),
    ],
)
def test_what_cannot_be_is_one_line_and_nothing_is_written(
    run, tmp_path, monkeypatch, more, options, told
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*more, **options)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert told in err
    assert err.count("\n") == 1
    assert everything(tmp_path) == []


def test_a_bundle_is_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["embed", "--triton", str(tmp_path / "models")]) == 2
    assert "--triton needs --bundle" in capsys.readouterr().err
    assert everything(tmp_path) == []


def test_what_is_there_already_stays(run: Run, tmp_path: Path) -> None:
    mine = tmp_path / "models" / "tiny" / "mine.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("precious")
    code, _, err = run()
    assert code == 2
    assert "exists already; remove it, or say another --model-name" in err
    assert everything(tmp_path / "models") == ["tiny", "tiny/mine.txt"]


def test_a_damaged_bundle_is_refused(run: Run, tmp_path: Path) -> None:
    copy = tmp_path / "pair"
    shutil.copytree(tiny_bundle(max_batch=3).path, copy)
    (copy / "draft" / "model.onnx.data").write_bytes(b"cut")
    code, _, err = run(bundle=copy)
    assert code == 2
    assert "model.onnx.data has 3 bytes" in err
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize("failing", ["copy2", "rename"])
def test_a_full_disk_leaves_nothing(run, tmp_path, monkeypatch, failing) -> None:
    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    monkeypatch.setattr(*((shutil, "copy2") if failing == "copy2" else (Path, "rename")), full)
    code, _, err = run()
    assert code == 2
    assert "cannot write" in err
    assert "No space left on device" in err
    assert everything(tmp_path / "models") == []


def test_what_a_killed_run_has_left_is_gone_after_the_next(run: Run, tmp_path: Path) -> None:
    """A hidden folder in the repository, which the server takes for a model, and which stopped a
    later run of the same process id: in a container each has the same."""
    main_ends = (
        "import os, signal, sys; from pathlib import Path; from runtime.cli.entry import main;"
        "Path.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL);"
        "main(sys.argv[1:])"
    )
    models, bundle = tmp_path / "models", tiny_bundle(max_batch=3).path
    command = ["embed", "--triton", models, "--bundle", bundle, "--model-name", "tiny"]
    kill_itself(main_ends, *command)
    assert any(models.iterdir())
    assert run()[0] == 0
    assert os.listdir(models) == ["tiny"]
    open_bundle(models / "tiny" / "1" / "bundle", hashes="all")


def test_a_run_that_goes_on_is_not_taken_for_a_killed_one(run: Run, tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    with staged(models, "tiny.ssd-triton") as place:
        (place / "1").mkdir()
        code, _, err = run()
        assert (code, everything(place)) == (2, ["1"])
    assert err == f"error: another run writes {place}; let it end first\n"
    assert os.listdir(models) == []
    assert run()[0] == 0


def test_a_place_that_is_a_file_is_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "models").write_text("mine")
    code, _, err = run()
    assert code == 2
    assert "cannot write" in err
    assert (tmp_path / "models").read_text() == "mine"


def test_help_says_what_it_was_not_run_with(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["embed", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "--triton DIR" in shown
    assert "not on a GPU" in shown
