"""A stand-in for runtime.llm.LLM whose tokens are characters and whose answers are known.

Run as a program it is ``python -m runtime`` over a FakeBundle (for tests of signals and pipes):
``python -m tests.runtime.cli.fake_llm ANSWER ARGUMENT...``; the answer ``hang`` never ends.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any

import numpy as np

from engines.errors import UsageError
from runtime.cli.console import say
from runtime.cli.entry import main
from runtime.llm import Completion, Stats
from runtime.placement import Placement
from runtime.sampling.logprobs import TokenLogprobs
from runtime.sampling.params import SamplingParams
from runtime.settings import Settings
from runtime.spec.fallback import Fallback


def stats(
    *,
    num_tokens: int = 1,
    num_rounds: int = 1,
    num_emitted: int = 1,
    num_hits: int | None = None,
    decode_s: float = 1.0,
    **more: Any,
) -> Stats:
    """All outcomes are looked up after a miss, unless ``more`` says otherwise."""
    lookups = {"num_hits_after_miss": num_hits, "num_rounds_after_miss": num_rounds}
    return Stats(
        num_tokens=num_tokens,
        num_rounds=num_rounds,
        num_emitted=num_emitted,
        num_hits=num_hits,
        histogram=(num_rounds,),
        prompt_s=0.5,
        decode_s=decode_s,
        verify_s=0.25,
        draft_s=0.0,
        **{**({} if num_hits is None else lookups), **more},
    )


SETTINGS = Settings(
    placement=Placement("ssd", (0,), (1,)),
    verify="coupled",
    num_draft=4,
    num_branches=6,
    max_batch=1,
    fallback=Fallback.JIT,
    saguaro=1.0,
    note=None,
)


@dataclass
class FakeBundle:
    """What every LLM opened from it does, and in ``events`` what was done with them."""

    answer: str = "Hello, world"
    max_len: int = 100
    has_chat_template: bool = True
    ran: dict[str, str] = field(default_factory=dict)
    note: str | None = None
    rounds: dict[str, int] = field(default_factory=dict)
    """Of each answer, its rounds by mode."""
    wrong: dict[tuple[str, str], str] = field(default_factory=dict)
    """(mode, prompt) -> an answer that differs."""
    events: list[str] = field(default_factory=list)
    requests: list[tuple[str, SamplingParams, int]] = field(default_factory=list)
    given: list[dict[str, object]] = field(default_factory=list)
    """Of each request, its other options."""
    opened: list[dict[str, object]] = field(default_factory=list)
    """Of each ``open``, all arguments."""

    def open(self, bundle: Path, *, mode: str, **options: object) -> Any:
        """In the place of ``LLM.open``."""
        self.events.append(f"open {mode}")
        self.opened.append({"bundle": bundle, "mode": mode, **options})
        return FakeLlm(self, self.ran.get(mode, mode))


class FakeLlm:
    def __init__(self, bundle: FakeBundle, mode: str) -> None:
        self.bundle = bundle
        self.mode = mode
        self.note = bundle.note
        self.settings = replace(SETTINGS, placement=Placement(mode, (0,), (1,)))
        self.timeline = None
        self.cancelled = threading.Event()
        self.has_chat_template = bundle.has_chat_template
        self.limits = SimpleNamespace(max_len=bundle.max_len)
        self.tokenizer = SimpleNamespace(decode=lambda ids: "".join(map(chr, ids)))

    def __enter__(self) -> FakeLlm:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self.bundle.events.append(f"close {self.mode}")

    def encode(self, text: str, *, chat: bool) -> list[int]:
        if not text:
            raise UsageError("the prompt is empty")
        return [ord(character) for character in (f"<{text}>" if chat else text)]

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        return list(
            map(ord, "".join(f"<{each['role'][0]}:{each['content']}>" for each in messages))
        )

    def cancel(self) -> None:
        self.bundle.events.append("cancel")
        self.cancelled.set()

    def generate(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        max_tokens: int,
        on_text: Callable[[str], None] | None = None,
        logprobs: int | None = None,
        **options: object,
    ) -> Completion:
        prompt = "".join(map(chr, prompt_ids))
        self.bundle.requests.append((prompt, params, max_tokens))
        self.bundle.given.append({"logprobs": logprobs, **options})
        self.cancelled.clear()
        if self.bundle.answer == "hang" and on_text is not None:
            on_text("first")
            while not self.cancelled.wait(0.05):  # a signal is heard between two waits
                pass
        if self.bundle.answer == "endless" and on_text is not None:
            for piece in cycle(["more "]):
                on_text(piece)
        answer = self.bundle.wrong.get((self.mode, prompt), self.bundle.answer)
        text = answer[:max_tokens]
        if on_text is not None:
            for character in text:
                on_text(character)
        speed = {"ar": 1, "sd": 2, "ssd": 4}.get(self.mode, 1)
        return Completion(
            text=text,
            token_ids=tuple(map(ord, text)),
            finish_reason="length" if len(answer) > max_tokens else "stop",
            mode=self.mode,
            note=self.note,
            prompt_tokens=len(prompt_ids),
            stats=stats(
                num_tokens=len(text),
                num_rounds=12,
                num_emitted=12 * speed,
                num_hits=9 if self.mode == "ssd" else None,
                decode_s=len(text) / (10 * speed),
                rounds_by_mode=self.bundle.rounds,
            ),
            logprobs=None if logprobs is None else tuple(entry(logprobs) for _ in text),
        )

    def generate_batch(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams],
        *,
        on_done: Callable[[int, Completion], None],
        **options: Any,
    ) -> list[Completion]:
        """The last prompt is the first to be done."""
        laws = [params] * len(prompts) if isinstance(params, SamplingParams) else params
        self.bundle.events.append(f"batch of {len(prompts)}")
        answers = [self.generate(*each, **options) for each in zip(prompts, laws, strict=True)]
        for index in reversed(range(len(answers))):
            on_done(index, answers[index])
        return answers


def entry(num_top: int) -> TokenLogprobs:
    """The likeliest tokens are "a", "b", ..., each half as likely as the one before."""
    top_logprobs = np.log(np.float32(0.5)) * np.arange(1, num_top + 1, dtype=np.float32)
    return TokenLogprobs(-1.5, ord("a") + np.arange(num_top, dtype=np.int32), top_logprobs, 2)


class _Telltale(list[str]):
    """Events that are also written to stderr, for a test that watches from outside."""

    def append(self, event: str) -> None:
        say(event)
        super().append(event)


if __name__ == "__main__":
    bundle = FakeBundle(answer=sys.argv[1], events=_Telltale())
    sys.exit(main(sys.argv[2:], open_llm=bundle.open))
