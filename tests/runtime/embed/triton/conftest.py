"""A loaded repository, and the library that its answers are compared with."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from runtime.engine_loop import EngineLoop, Job
from runtime.grammar import Grammar, GrammarCompiler
from runtime.grammar.compiler import GrammarState
from runtime.llm import LLM
from runtime.scheduler import Scheduler
from tests.helpers.fake_triton import FakeModel
from tests.helpers.tiny_bundle import tiny_bundle
from tests.runtime.embed.triton.served import repository


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeModel]:
    """Three texts run at once, two may wait; moved behind its writing."""
    folder = repository(tmp_path_factory.mktemp("written"), mode="ssd", max_waiting=2)
    moved = folder.rename(tmp_path_factory.mktemp("moved") / "tiny")
    loaded = FakeModel(moved)
    yield loaded
    loaded.unload()
    failed = [line for line in loaded.logger.lines if "could not be sent" in line]
    assert failed == [], "the server had reason to complain"


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The engines stand still until a request was cancelled, or the event is set."""
    gate, step, cancel = threading.Event(), Scheduler.step, EngineLoop.cancel

    def waiting(scheduler: Scheduler) -> None:
        assert gate.wait(30)
        step(scheduler)

    def opening(loop: EngineLoop, job: Job) -> None:
        cancel(loop, job)
        gate.set()

    monkeypatch.setattr(Scheduler, "step", waiting)
    monkeypatch.setattr(EngineLoop, "cancel", opening)
    yield gate
    gate.set()


@pytest.fixture(scope="module")
def alone() -> Iterator[LLM]:
    with LLM.open(tiny_bundle(max_batch=3).path, mode="ar") as llm:
        yield llm


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """No grammar is compiled until the event is set."""
    gate, start = threading.Event(), GrammarCompiler.start

    def slow(compiler: GrammarCompiler, grammar: Grammar) -> GrammarState:
        assert gate.wait(30)
        return start(compiler, grammar)

    monkeypatch.setattr(GrammarCompiler, "start", slow)
    yield gate
    gate.set()
