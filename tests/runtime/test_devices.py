"""What --device may say, and what it means."""

from __future__ import annotations

import pytest

from engines.errors import UsageError
from runtime.devices import DevicePair, parse_devices, require_one_gpu_each


@pytest.mark.parametrize(
    ("text", "target", "draft"),
    [
        ("cpu", None, None),
        ("cpu,cpu", None, None),
        ("cuda", 0, 0),
        ("cuda:3", 3, 3),
        ("cuda:0,cuda:1", 0, 1),
        ("cuda:1, cuda:0", 1, 0),
        ("cuda:0,cpu", 0, None),
        ("cuda:2,cuda:2", 2, 2),
    ],
)
def test_every_form_is_read(text: str, target: int | None, draft: int | None) -> None:
    pair = parse_devices(text)
    assert (pair.target.ordinal, pair.draft.ordinal) == (target, draft)
    assert pair.on_gpu == (target is not None)
    assert pair.is_shared == (target is not None and target == draft)


def test_a_pair_is_shown_as_it_is_asked_for() -> None:
    for text in ("cpu", "cuda:0", "cuda:0,cuda:1", "cuda:0,cpu"):
        assert str(parse_devices(text)) == text
    assert str(DevicePair()) == "cpu"


@pytest.mark.parametrize("text", ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "CPU", "cuda:0;cuda:1"])
def test_anything_else_is_refused_with_what_is_expected(text: str) -> None:
    with pytest.raises(UsageError, match=r"is no device, expected cpu, cuda:0 "):
        parse_devices(text)


def test_a_third_device_and_a_target_below_its_draft_are_refused() -> None:
    with pytest.raises(UsageError, match="names 3 devices"):
        parse_devices("cuda:0,cuda:1,cuda:2")
    with pytest.raises(UsageError, match="--device cuda:1,cpu"):
        parse_devices("cpu,cuda:1")


def test_a_share_is_a_part_of_one_gpu() -> None:
    assert parse_devices("cuda:0", 0.25).draft_sm_share == 0.25
    for share in (0.0, 1.0, -0.5, float("nan")):
        with pytest.raises(UsageError, match="above 0 and below 1"):
            parse_devices("cuda:0", share)
    for wrong in ("0.5", [0.5]):
        with pytest.raises(UsageError, match="above 0 and below 1"):
            parse_devices("cuda:0", wrong)  # type: ignore[arg-type]
    for text in ("cpu", "cuda:0,cuda:1", "cuda:0,cpu"):
        with pytest.raises(UsageError, match="divides one GPU"):
            parse_devices(text, 0.5)


def test_a_target_over_several_gpus_is_refused_with_the_reason() -> None:
    require_one_gpu_each(1)
    with pytest.raises(UsageError, match=r"no collective operations.*--tensor-parallel 1"):
        require_one_gpu_each(4)
