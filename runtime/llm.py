"""The offline API: open a bundle, generate text.

    with LLM.open("engines/bundles/demo", mode="ssd") as llm:
        answer = llm.chat([{"role": "user", "content": "Why is the sky blue?"}], max_tokens=100)
        print(answer.text)
        for piece in llm.stream("Once upon a time", SamplingParams(0.8, seed=7), stop="\\n\\n"):
            print(piece, end="")

An LLM runs one call at a time, and refuses another meanwhile: many prompts at once are one
``generate_batch``, many callers at once are for ``runtime.async_llm``. Only ``cancel`` may come
from anywhere at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Unpack

from engines.bundle import Bundle, open_bundle
from engines.manifest import Limits
from runtime.call import text_only
from runtime.completion import Answer, Completion, TextStream, TokenLogprobs, completed
from runtime.engine import Engine
from runtime.grammar import Grammar
from runtime.intake import Intake, Prompt, Served
from runtime.loader import load_pair, memory_of
from runtime.loading.api import Pair
from runtime.loading.hardware import INSTALLED, Hardware
from runtime.memory_plan import MemoryPlan
from runtime.placement import AUTO
from runtime.request import GenerateOptions
from runtime.sampling.params import SamplingParams, choice_params
from runtime.scheduler import OnRound, RoundReport, Stats
from runtime.score import score, scorer
from runtime.settings import PREPARING, Settings, settle
from runtime.text.prompt import Messages
from runtime.ticket import Ticket
from runtime.trace.rounds import RoundMarks
from runtime.trace.timeline import Timeline

__all__ = ["LLM", "Completion", "Stats", "TextStream", "TokenLogprobs", "score", "scorer"]

GREEDY = SamplingParams()


class LLM:
    """A loaded bundle. Make it with ``open``; close it or use it in a ``with``."""

    def __init__(
        self, bundle: Bundle, pair: Pair, settings: Settings, timeline: Timeline | None
    ) -> None:
        self.bundle = bundle
        self.settings = settings
        self.mode = settings.placement.mode
        self.timeline = timeline
        self.intake = Intake(bundle, Served(pair.max_banned_ids, pair.follows_text))
        self.tokenizer = self.intake.tokenizer
        self.engine = Engine(pair)
        """What drives the pair: this LLM's calls, or ``runtime.engine_loop``."""

    @classmethod
    def open(
        cls,
        bundle: Path | str,
        *,
        mode: str = AUTO,
        verify: str = "coupled",
        num_draft: int | None = None,
        drafter: str = AUTO,
        branches: int | None = None,
        max_batch: int | None = None,
        fallback: str = AUTO,
        saguaro: float | str = 1.0,
        adaptive_length: bool = False,
        backend: str | None = None,
        device: str | None = None,
        draft_sm_share: float | None = None,
        tensor_parallel: int = 1,
        trace: bool = False,
        on_round: OnRound | None = None,
        tell: Callable[[str], None] | None = None,
        announce: Callable[[str], None] | None = None,
        prefix_reuse: bool = True,
        hardware: Hardware = INSTALLED,
    ) -> LLM:
        """Load a bundle.

        mode       how to decode: ``ar``, ``sd``, ``ssd`` or ``auto`` (the fastest, as it runs)
        verify     the rule that accepts drafted tokens: ``coupled`` or ``ratio``
        num_draft, branches, max_batch
                   tokens drafted a round (K), outcomes prepared (W), prompts decoded at once; at
                   most, and by default, what the bundle was built for
        drafter    who proposes: the draft ``model``; ``lookup``, what followed the same words
                   earlier in the text, with which no draft is loaded or needed (not in ``ssd``);
                   ``both``, row by row what promises more; or ``auto``: ``both``, ``lookup`` for a
                   bundle without a draft, ``model`` on GPUs
        fallback   what a row of ``ssd`` goes on with when its outcome was not prepared: ``zero``
                   drafts, one drafted just in time (``jit``), one copied from the text
                   (``lookup``), or ``auto``
        saguaro    with ``ratio``: C of the paper's Saguaro sampling, 0 to 1 (off) or ``auto``
        adaptive_length
                   with ``coupled``: end proposals where the draft is unsure of itself (CPU only)
        backend    what the bundle has to be built for; None: whatever it is
        device     ``cpu``, ``cuda:0``, ``cuda:0,cuda:1`` (target, draft) or ``cuda:0,cpu``; None:
                   the CPU, or the first GPU for a bundle of compiled engines
        draft_sm_share
                   the draft's own part of the GPU that both engines share; None: all, shared
        tensor_parallel
                   GPUs that the target is spread over: 1
        trace      record who worked when in ``timeline`` (CPU only)
        on_round   called with the report of each round
        tell       called with lines on what is loaded, the memory plan first
        announce   called with a line before the machine is measured, which takes some seconds
        prefix_reuse
                   a text that begins as an earlier one did is not fed that part again (CPU only);
                   nothing but times and ``Stats.num_cached`` shows it
        hardware   stands in for what is installed, in tests

        Raises BundleError, UsageError, CapacityError, BackendError, DeviceError or
        MissingDependencyError.
        """
        opened = open_bundle(bundle)
        settings = settle(
            opened,
            mode=mode,
            verify=verify,
            num_draft=num_draft,
            drafter=drafter,
            branches=branches,
            max_batch=max_batch,
            fallback=fallback,
            saguaro=saguaro,
            adaptive_length=adaptive_length,
            backend=backend,
            device=device,
            draft_sm_share=draft_sm_share,
            tensor_parallel=tensor_parallel,
            announce=announce,
        )
        timeline = Timeline() if trace else None
        prepares = settings.placement.mode in PREPARING  # elsewhere nothing hits or misses
        marks = RoundMarks(timeline) if timeline is not None and prepares else None
        listeners = [each for each in (marks, on_round) if each is not None]
        pair = load_pair(
            opened,
            settings,
            timeline=timeline,
            on_round=partial(_tell_all, listeners) if listeners else None,
            tell=tell,
            hardware=hardware,
            prefix_reuse=prefix_reuse,
        )
        try:
            return cls(opened, pair, settings, timeline)
        except BaseException:
            pair.close()
            raise

    @property
    def note(self) -> str | None:
        """What is not as it was asked for, and why; None where all is. It may change as it runs."""
        settings, (of_pair, of_draft) = self.settings, self.engine.notes
        of_policy = getattr(settings.policy, "note", None)
        return "; ".join(filter(None, (settings.note, of_pair, of_policy, of_draft))) or None

    @property
    def has_lost_draft(self) -> bool:
        """Whether the draft failed, and decoding goes on without it."""
        return self.engine.notes[1] is not None

    @property
    def memory_plan(self) -> MemoryPlan:
        """What the pair takes of each device, as it was worked out before loading."""
        chosen = self.settings
        sizes = chosen.num_draft, chosen.num_branches, chosen.max_batch
        return memory_of(self.bundle, chosen.placement, *sizes, drafter=chosen.drafter)

    @property
    def limits(self) -> Limits:
        return self.bundle.manifest.limits

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self.bundle.target.model.eos_token_ids

    @property
    def has_chat_template(self) -> bool:
        return self.intake.prompts.has_chat_template

    def encode(self, text: str, *, chat: bool = False) -> list[int]:
        """Token ids of a prompt; ``chat`` wraps it as one user turn of the chat template.

        Raises UsageError for an empty text, or ``chat`` without a template in the bundle.
        """
        if chat and isinstance(text, str) and text:
            return self.encode_chat([{"role": "user", "content": text}])
        return self.intake.prompts.encode(text)

    def encode_chat(self, messages: Messages) -> list[int]:
        """Token ids of a conversation in the chat template; see ``runtime.text.prompt``."""
        return self.intake.prompts.encode_chat(messages)

    def compile(self, grammar: Grammar) -> None:
        """Compile a grammar ahead of the first request with it; it is kept for those that come.

        Raises UsageError for one that cannot be used, MissingDependencyError without its library.
        """
        self.intake.compiler.start(grammar)

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams = GREEDY,
        *,
        on_text: Callable[[str], None] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Completion:
        """Continue a prompt. ``on_text`` gets each new piece of text as soon as it is certain.

        For ``options`` see ``GenerateOptions``. Raises UsageError or CapacityError for a request
        that cannot be served, MissingDependencyError for a grammar without its library; nothing
        has happened then. The tokens depend on the bundle, prompt, params, options and rule alone,
        not on the mode (by the coupled rule).
        """
        answer = self.intake.answer(prompt, params, text_only(on_text or _ignore), options)
        for _ in self.engine.steps([answer]):
            pass
        return self.completion_of(answer)

    def chat(
        self,
        messages: Messages,
        params: SamplingParams = GREEDY,
        *,
        on_text: Callable[[str], None] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Completion:
        """Answer a conversation: ``generate`` from ``encode_chat`` of its messages."""
        return self.generate(self.encode_chat(messages), params, on_text=on_text, **options)

    def choices(
        self,
        prompt: Prompt,
        params: SamplingParams = GREEDY,
        *,
        n: int,
        on_text: Callable[[int, str], None] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> list[Completion]:
        """``n`` answers to one prompt, decoded together: choice i is what ``generate`` gives with
        the seed (params.seed + i) mod 2**64. ``n`` is 1 to 128."""
        each = choice_params(params, n)
        return self.generate_batch([prompt] * n, each, on_text=on_text, **options)

    def generate_batch(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] = GREEDY,
        *,
        on_text: Callable[[int, str], None] | None = None,
        on_done: Callable[[int, Completion], None] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> list[Completion]:
        """Continue many prompts, as many at once as the LLM was opened for; the next one begins
        where one has ended. The completions stand in the order of the prompts.

        ``params`` are one for all or one for each. The callbacks get the prompt's index. A
        prompt's tokens do not depend on the others (by the coupled rule).
        """
        answers = self.intake.answers(prompts, params, on_text, options)
        places = {answer: index for index, answer in enumerate(answers)}
        with closing(self.engine.steps(answers)) as steps:
            for answer in chain.from_iterable(steps):
                if on_done is not None:
                    on_done(places[answer], self.completion_of(answer))
        return [self.completion_of(answer) for answer in answers]

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams = GREEDY,
        **options: Unpack[GenerateOptions],
    ) -> TextStream:
        """Continue a prompt, piece by piece, as the caller asks for the pieces.

            with llm.stream(prompt, max_tokens=200) as pieces:
                for piece in pieces:
                    print(piece, end="")
            print(pieces.completion.finish_reason)

        Until it is used up or closed, the LLM is busy with it. Raises as ``generate`` does, at
        once for what is wrong with the request.
        """
        pieces: list[str] = []
        answer = self.intake.answer(prompt, params, text_only(pieces.append), options)

        return TextStream(
            self.engine.pieces(answer, pieces),
            lambda: self.completion_of(answer) if answer.is_complete else None,
        )

    def cancel(self, index: int | None = None) -> None:
        """End what runs now, or the prompt ``index`` of a batch, from any thread or a callback.

        The call that runs it returns with what there is and the finish reason "cancelled".
        Raises UsageError for an index that is no whole number.
        """
        self.engine.cancel(index)

    def completion_of(self, answer: Answer) -> Completion:
        """Of an answer that is complete."""
        if answer.ticket is None:  # it never began
            answer.ticket = Ticket(answer.request, None, self.settings.num_draft)
        return completed(answer, self.mode, self.note, self.eos_token_ids)

    def close(self) -> None:
        """Free engines, caches and threads, at once; idempotent. A request that runs raises
        UsageError.

        In a process forked off the one that opened it there is nothing to free.
        """
        self.engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _tell_all(listeners: Sequence[OnRound], report: RoundReport) -> None:
    for listen in listeners:
        listen(report)


def _ignore(_piece: str) -> None:
    """Nobody listens."""
