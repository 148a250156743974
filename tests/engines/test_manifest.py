from __future__ import annotations

import json
from dataclasses import replace

import pytest

from engines.errors import BundleCorruptError, BundleIncompatibleError
from engines.manifest import (
    DRAFT,
    SCHEMA,
    TARGET,
    FileEntry,
    KvLayout,
    Limits,
    check_path,
    dump,
    load_bundle,
    load_engine,
)
from engines.tensors import DType
from tests.engines.tiny_bundles import REBUILD, bundle_manifest, engine_manifest, plan_facts


@pytest.mark.parametrize("role", [TARGET, DRAFT])
def test_an_engines_manifest_comes_back_as_written(role: str) -> None:
    manifest = engine_manifest(role)
    assert load_engine(dump(manifest), "m") == manifest


@pytest.mark.parametrize("draft", [True, False])
def test_a_bundles_manifest_comes_back_as_written(draft: bool) -> None:
    manifest = bundle_manifest(draft=draft)
    assert load_bundle(dump(manifest), "m") == manifest


def test_another_schema_is_refused_with_the_rebuild_command_even_if_the_rest_is_unknown() -> None:
    text = json.dumps({"schema": 99, "rebuild": REBUILD, "of the future": []})
    with pytest.raises(BundleIncompatibleError) as caught:
        load_bundle(text, "b/bundle.json")
    assert "b/bundle.json has schema 99, this version reads schema 3" in str(caught.value)
    assert REBUILD in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '"manifest"',
        "{}",
        '{"schema": true}',
        '{"schema": "1"}',
        "[" * 100_000,
        '{"schema": 1, "rebuild": NaN}',
    ],
)
def test_what_is_no_manifest_is_corrupt_not_a_crash(text: str) -> None:
    with pytest.raises(BundleCorruptError, match=r"m\.json"):
        load_bundle(text, "m.json")


@pytest.mark.parametrize(
    "path",
    [
        "",
        ".",
        "..",
        "/etc/passwd",
        "../x",
        "a/../../x",
        "a/./b",
        "a//b",
        "a/",
        "a\\b",
        "a\0b",
        "a\nb",
        "\ud800",
    ],
)
def test_a_path_that_leaves_the_bundle_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        check_path(path)
    with pytest.raises(ValueError, match="path"):
        FileEntry(path, 1, "0" * 64)


def test_plain_paths_are_taken() -> None:
    for path in ("tokenizer.json", "target/model.onnx", "..hidden", "a b"):
        check_path(path)


def test_a_rebuild_command_of_two_lines_is_refused() -> None:
    """It would be printed, and could print anything."""
    with pytest.raises(ValueError, match="one line"):
        replace(bundle_manifest(draft=False), rebuild="a\nb")


@pytest.mark.parametrize("rebuild", ["\x1b[2J make", "make\nmore", 7, None])
def test_a_rebuild_command_of_another_schema_is_shown_only_if_it_is_a_line(rebuild: object) -> None:
    text = json.dumps({"schema": 99, "rebuild": rebuild})
    with pytest.raises(
        BundleIncompatibleError, match=r"rebuild it: python -m export build \.\.\.$"
    ):
        load_bundle(text, "m")


@pytest.mark.parametrize("name", ["max_len", "max_batch", "num_draft", "max_branches"])
def test_limits_below_the_least_are_refused(name: str) -> None:
    least = 0 if name in ("num_draft", "max_branches") else 1
    good = Limits(8, 1, 0, 0)
    replace(good, **{name: least})
    with pytest.raises(ValueError, match=name):
        replace(good, **{name: least - 1})


def test_a_head_of_more_ids_than_the_model_has_is_refused() -> None:
    model = engine_manifest(DRAFT).model
    assert replace(model, output_vocab=model.vocab_size).output_vocab == model.vocab_size
    with pytest.raises(ValueError, match=r"output_vocab .* exceeds vocab_size"):
        replace(model, output_vocab=model.vocab_size + 1)


def test_cache_bytes_count_keys_and_values_of_every_layer_and_slot() -> None:
    kv = KvLayout(3, 2, 8, DType.FLOAT16, scratch_rows=4, trunk_rows=12)
    assert kv.rows == 16
    assert kv.bytes_for(5) == 5 * 16 * (2 * 3 * 2 * 8) * 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"role": "judge"}, "neither target nor draft"),
        ({"lengths": ()}, "rise"),
        ({"lengths": (64, 64, 144)}, "rise"),
        ({"lengths": (64,)}, "lengths end at 64, the cache has 144"),
        ({"vocab_map": None}, "reduced vocabulary needs a vocab_map"),
        ({"vocab_map": "../map.npy"}, "leaves the bundle"),
    ],
)
def test_an_engine_that_contradicts_itself_is_refused(
    change: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        replace(engine_manifest(DRAFT), **change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["model"].update(eos_token_ids=[64]), "token id 64 is outside the 64"),
        (lambda d: d["model"].update(bos_token_id=-1), "token id -1"),
        (lambda d: d["lengths"].insert(0, 0), "lengths is 0"),
        (lambda d: d["limits"].update(max_len=109), "trunk_rows is 112, expected at least 113"),
        (lambda d: d["limits"].update(num_draft=5), "scratch_rows is 32, expected at least 40"),
    ],
)
def test_an_engine_that_could_not_run_its_own_limits_is_corrupt(change, words: str) -> None:
    """Loaded, it would fail in the middle of a text."""
    document = json.loads(dump(engine_manifest(DRAFT)))
    change(document)
    with pytest.raises(BundleCorruptError, match=words):
        load_engine(json.dumps(document), "m")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(precision="int99"), "precision 'int99' is none of int8"),
        (lambda d: d["plan"].update(capabilities=[]), "capabilities"),
        (lambda d: d["plan"].update(capabilities=["8.9", "\x1b[2J"]), "capabilities"),
        (lambda d: d["plan"].update(profiles=[]), "profiles are not those of the limits"),
        (lambda d: d["plan"]["profiles"].pop(1), "profiles are not those of the limits"),
        (lambda d: d["plan"]["profiles"][0]["batch"].update(most=10**30), "profiles are not"),
        (lambda d: d["kv"].update(num_kv_heads=10**30), "num_kv_heads is 1.*, expected at most"),
        (lambda d: d["model"].update(num_parameters=10**400), "num_parameters is 1"),
        (lambda d: d["limits"].update(max_batch=10**400), "max_batch is 1"),
    ],
)
def test_a_compiled_engine_that_no_build_writes_is_corrupt(change, words: str) -> None:
    """Each of these was shown by inspect as if it were sound, or was a traceback there."""
    compiled = {"backend": "tensorrt-rtx", "precision": "fp16", "plan": plan_facts(DRAFT)}
    document = json.loads(dump(replace(engine_manifest(DRAFT), **compiled)))
    load_engine(json.dumps(document), "m")
    change(document)
    with pytest.raises(BundleCorruptError, match=words):
        load_engine(json.dumps(document), "m")


def test_a_bundle_of_no_known_precision_is_corrupt() -> None:
    document = json.loads(dump(bundle_manifest(draft=True)))
    document["precision"] = "int99"
    with pytest.raises(BundleCorruptError, match="int99"):
        load_bundle(json.dumps(document), "m")


@pytest.mark.parametrize("share", [-0.1, 1.5, 1e308])
def test_figures_that_are_no_shares_are_corrupt(share: float) -> None:
    """1e308 overflowed in the acceptance law: a traceback."""
    document = json.loads(dump(bundle_manifest(draft=True)))
    document["draft_figures"]["ranks"] = [share]
    with pytest.raises(BundleCorruptError, match="shares"):
        load_bundle(json.dumps(document), "m")


def test_a_name_that_stands_twice_is_corrupt() -> None:
    schema = f'"schema": {SCHEMA}'
    text = dump(bundle_manifest(draft=True)).replace(schema, f"{schema}, {schema}")
    with pytest.raises(BundleCorruptError, match="twice"):
        load_bundle(text, "m")
