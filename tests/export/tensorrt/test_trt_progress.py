from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from export.tensorrt.progress import PARTS, STAGE, BuildProgress


class Recorder:
    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, what: str, done: int, total: int) -> None:
        assert (what, total) == (STAGE, PARTS)
        self.seen.append(done)


def run(progress: BuildProgress, name: str, parent: str | None, tree: list[object]) -> None:
    """A phase whose steps are the phases in ``tree``, as TensorRT calls a monitor."""
    progress.start(name, parent, len(tree))
    for index, inside in enumerate(tree):
        assert isinstance(inside, list)
        run(progress, f"{name}.{index % 2}", name, inside)  # names repeat, as TensorRT's do
        progress.step(name, index)
    progress.finish(name)


trees: st.SearchStrategy[list[object]] = st.recursive(
    st.just([]), lambda inner: st.lists(inner, max_size=4), max_leaves=20
)


@given(trees)
def test_the_share_rises_to_the_end_whatever_is_inside(tree: list[object]) -> None:
    recorder = Recorder()
    progress = BuildProgress(recorder)
    run(progress, "Building engine", None, tree)
    progress.complete()
    assert recorder.seen == sorted(set(recorder.seen))
    assert recorder.seen[-1] == PARTS


def test_a_phase_inside_moves_its_parent() -> None:
    recorder = Recorder()
    progress = BuildProgress(recorder)
    progress.start("all", None, 2)
    progress.start("half", "all", 4)
    progress.step("half", 0)
    progress.step("half", 1)
    assert recorder.seen == [0, 12, 25]


def test_what_a_listener_raises_stops_the_build_and_is_kept() -> None:
    """An exception must not pass through the C++ frames between us and the builder."""

    def stop(_what: str, done: int, _total: int) -> None:
        if done:
            raise KeyboardInterrupt

    progress = BuildProgress(stop)
    progress.start("all", None, 4)
    assert not progress.step("all", 0)
    assert isinstance(progress.error, KeyboardInterrupt)
    assert not progress.step("all", 1)


def test_a_step_of_an_unknown_phase_is_no_error() -> None:
    assert BuildProgress(Recorder()).step("never started", 3)
