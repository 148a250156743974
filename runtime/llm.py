"""The offline API: open a bundle, generate text.

    with LLM.open(Path("engines/bundles/demo"), mode="ssd") as llm:
        answer = llm.generate(llm.encode("Why is the sky blue?", chat=True), max_tokens=100)
        print(answer.text)
        for piece in llm.stream(llm.encode("Once upon a time"), stop=["\\n\\n"]):
            print(piece, end="")

An LLM is used by one thread at a time, for one call at a time: many prompts at once are one
``generate_batch``. Only ``cancel`` may come from anywhere at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Unpack

from engines.bundle import Bundle, open_bundle
from engines.errors import CapacityError, UsageError
from engines.manifest import Limits
from runtime.call import Call
from runtime.completion import Answer, Completion, TextStream, TokenLogprobs
from runtime.engine import Engine
from runtime.loader import load_pair, memory_of
from runtime.loading.api import Pair
from runtime.loading.hardware import INSTALLED, Hardware
from runtime.memory_plan import MemoryPlan
from runtime.placement import AUTO
from runtime.request import GenerateOptions
from runtime.sampling.params import SamplingParams
from runtime.scheduler import OnRound, RoundReport, Stats
from runtime.score import score, scorer
from runtime.settings import PREPARING, Settings, settle
from runtime.text.chat import ChatTemplate
from runtime.text.tokenizer import Tokenizer
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
        self.tokenizer = Tokenizer(bundle.tokenizer_path.read_bytes())
        path = bundle.chat_template_path
        self._chat_source = None if path is None else path.read_bytes()
        self._chat: ChatTemplate | None = None
        self._pair = pair
        self._engine = Engine(pair)

    @classmethod
    def open(
        cls,
        bundle: Path | str,
        *,
        mode: str = AUTO,
        verify: str = "coupled",
        num_draft: int | None = None,
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
        hardware: Hardware = INSTALLED,
    ) -> LLM:
        """Load a bundle.

        mode       how to decode: ``ar``, ``sd``, ``ssd`` or ``auto`` (the fastest, as it runs)
        verify     the rule that accepts drafted tokens: ``coupled`` or ``ratio``
        num_draft, branches, max_batch
                   tokens drafted a round (K), outcomes prepared (W), prompts decoded at once; at
                   most, and by default, what the bundle was built for
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
        )
        try:
            return cls(opened, pair, settings, timeline)
        except BaseException:
            pair.close()
            raise

    @property
    def note(self) -> str | None:
        """What is not as it was asked for, and why; None where all is. It may change as it runs."""
        settings, pair = self.settings, self._pair
        of_policy = getattr(settings.policy, "note", None)
        notes = (settings.note, pair.note, of_policy, pair.scheduler.note)
        return "; ".join(filter(None, notes)) or None

    @property
    def memory_plan(self) -> MemoryPlan:
        """What the pair takes of each device, as it was worked out before loading."""
        chosen = self.settings
        sizes = chosen.num_draft, chosen.num_branches, chosen.max_batch
        return memory_of(self.bundle, chosen.placement, *sizes)

    @property
    def limits(self) -> Limits:
        return self.bundle.manifest.limits

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self.bundle.target.model.eos_token_ids

    @property
    def has_chat_template(self) -> bool:
        return self._chat_source is not None

    def encode(self, text: str, *, chat: bool = False) -> list[int]:
        """Token ids of a prompt; ``chat`` wraps it as one user turn of the chat template.

        Raises UsageError for an empty text, or ``chat`` without a template in the bundle.
        """
        if not isinstance(text, str):
            raise UsageError(f"the prompt is a {type(text).__name__}, expected text")
        if not text:
            raise UsageError("the prompt is empty; give some text")
        if chat:
            text = self._template().render([{"role": "user", "content": text}])
        room = self.limits.max_len
        if not self.tokenizer.may_fit(text, room):
            raise CapacityError(
                f"the prompt has {len(text)} characters, more than {room} tokens can hold; "
                "shorten it or rebuild with a larger --max-len"
            )
        # A chat template writes the begin-of-text token itself, where the model wants one.
        return self.tokenizer.encode(text, add_special_tokens=not chat)

    def generate(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams = GREEDY,
        *,
        on_text: Callable[[str], None] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Completion:
        """Continue a prompt. ``on_text`` gets each new piece of text as soon as it is certain.

        ``options`` are max_tokens, min_tokens, stop, stop_token_ids and logprobs; see
        ``GenerateOptions``. Raises UsageError or CapacityError for a request that cannot be
        served; nothing has happened then. The tokens depend on the bundle, prompt, params and
        rule alone, not on the mode (by the coupled rule).
        """
        answer = self._call(options).answer(prompt_ids, params, on_text or _ignore)
        for _ in self._engine.steps([answer]):
            pass
        return self._completion(answer)

    def generate_batch(
        self,
        prompts: Sequence[Sequence[int]],
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
        answers = self._call(options).answers(prompts, params, on_text)
        places = {answer: index for index, answer in enumerate(answers)}
        with closing(self._engine.steps(answers)) as steps:
            for answer in chain.from_iterable(steps):
                if on_done is not None:
                    on_done(places[answer], self._completion(answer))
        return [self._completion(answer) for answer in answers]

    def stream(
        self,
        prompt_ids: Sequence[int],
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
        answer = self._call(options).answer(prompt_ids, params, pieces.append)

        def run() -> Generator[str, None, None]:
            try:
                yield ""
                with closing(self._engine.steps([answer])) as steps:
                    for _ in steps:
                        while pieces:
                            yield pieces.pop(0)
            except GeneratorExit:
                answer.request.cancel()
                raise
            finally:
                if answer.request.finish_reason is not None:  # else it was refused
                    answer.finish()

        running = run()
        next(running)  # closing a generator that has not begun runs none of its code
        return TextStream(running, lambda: self._completion(answer) if answer.is_complete else None)

    def cancel(self, index: int | None = None) -> None:
        """End what runs now, or the prompt ``index`` of a batch, from any thread or a callback.

        The call that runs it returns with what there is and the finish reason "cancelled".
        Raises UsageError for an index that is no whole number.
        """
        self._engine.cancel(index)

    def _call(self, options: GenerateOptions) -> Call:
        most = self._pair.max_banned_ids
        return Call(self.bundle, self.tokenizer, options, max_banned_ids=most)

    def _completion(self, answer: Answer) -> Completion:
        """Of an answer that is complete."""
        request = answer.request
        assert request.finish_reason is not None
        ticket = answer.ticket or Ticket(request, None, self.settings.num_draft)  # never begun
        is_own = request.stop_token in self.eos_token_ids
        return Completion(
            text=answer.text,
            token_ids=tuple(request.generated),
            finish_reason=request.finish_reason.value,
            mode=self.mode,
            note=self.note,
            prompt_tokens=len(request.prompt),
            stats=ticket.stats,
            logprobs=None if request.num_logprobs is None else tuple(request.logprobs),
            stop_reason=answer.found or (None if is_own else request.stop_token),
        )

    def _template(self) -> ChatTemplate:
        """Compiled when it is first asked for: a damaged one must not keep plain prompts out."""
        if self._chat_source is None:
            raise UsageError(
                f"{self.bundle.path} has no chat template (its checkpoint has none); "
                "leave --chat away"
            )
        if self._chat is None:
            tokens = self.bundle.manifest.special_tokens
            self._chat = ChatTemplate.from_bytes(self._chat_source, tokens)
        return self._chat

    def close(self) -> None:
        """Free engines, caches and threads; idempotent. A request that runs raises UsageError.

        In a process forked off the one that opened it there is nothing to free.
        """
        self._engine.close()

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
