"""The offline API: open a bundle, generate text.

    with LLM.open(Path("engines/bundles/demo"), mode="ssd") as llm:
        answer = llm.generate(llm.encode("Why is the sky blue?", chat=True), max_tokens=100)
        print(answer.text)

One LLM runs one request at a time and is used by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from types import TracebackType

import numpy as np

from engines.bundle import Bundle, open_bundle
from engines.compat import require
from engines.errors import CapacityError, UsageError
from engines.manifest import DRAFT, TARGET, Limits
from runtime.backends.onnxruntime import OrtSession
from runtime.calibrate import choose_mode
from runtime.decode import Stats
from runtime.device.cores import available_cores, cpu_quota
from runtime.device.host import HostDevice
from runtime.kv.layout import SlotLayout
from runtime.loader import BACKEND, LoadedPair
from runtime.placement import AUTO, Placement, place
from runtime.request import Request, read_request, whole_number
from runtime.sampling.params import SamplingParams
from runtime.text.chat import ChatTemplate
from runtime.text.detok import Detokenizer
from runtime.text.tokenizer import Tokenizer
from runtime.workers.prefill import score_text

__all__ = ["LLM", "Completion", "Stats", "score"]

GREEDY = SamplingParams()


@dataclass(frozen=True, slots=True)
class Completion:
    """A generated text. ``token_ids`` excludes the prompt and an end-of-sequence token.

    ``finish_reason``: "stop" (end of sequence), "length" (max_tokens), "context" (max_len).
    ``mode`` is what ran; ``note`` says why, where it is not what was asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    mode: str
    note: str | None
    prompt_tokens: int
    stats: Stats


class LLM:
    """A loaded bundle. Make it with ``open``; close it or use it in a ``with``."""

    def __init__(self, bundle: Bundle, pair: LoadedPair, note: str | None) -> None:
        self.bundle = bundle
        self.mode = pair.placement.mode
        self.note = note
        self.tokenizer = Tokenizer(bundle.tokenizer_path.read_bytes())
        path = bundle.chat_template_path
        self._chat_source = None if path is None else path.read_bytes()
        self._chat: ChatTemplate | None = None
        self._pair = pair
        self._turn = Lock()
        self._is_closed = False

    @classmethod
    def open(
        cls,
        bundle: Path | str,
        *,
        mode: str = AUTO,
        verify: str = "coupled",
        num_draft: int | None = None,
        branches: int | None = None,
    ) -> LLM:
        """Load a bundle for one mode: ``ar``, ``sd``, ``ssd`` or ``auto`` (the fastest predicted).

        ``verify`` is the rule, ``coupled`` or ``ratio``. ``num_draft`` (K) and ``branches`` (W)
        default to what the bundle was built for, and may be smaller. Raises BundleError, UsageError
        or BackendError.
        """
        num_draft = _count("num_draft", num_draft)
        branches = _count("branches", branches)
        opened = open_bundle(bundle)
        require(opened, backend=BACKEND, num_draft=num_draft, branches=branches)
        limits = opened.manifest.limits
        depth = limits.num_draft if num_draft is None else num_draft
        width = limits.max_branches if branches is None else branches
        note = None
        if mode == AUTO:
            mode, note = choose_mode(opened, depth, width)
        placement = place(mode, available_cores(), cpu_quota(), has_draft=opened.draft is not None)
        _check_depth(placement, depth, width)
        pair = LoadedPair(opened, placement, verify=verify, num_draft=depth, num_branches=width)
        try:
            return cls(opened, pair, placement.note or note)
        except BaseException:
            pair.close()
            raise

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
        max_tokens: int = 128,
        on_text: Callable[[str], None] | None = None,
    ) -> Completion:
        """Continue a prompt. ``on_text`` gets each new piece of text as soon as it is certain.

        Raises UsageError or CapacityError for a request that cannot be served; nothing has
        happened then. The tokens depend on the bundle, prompt, params and rule alone, not on
        the mode (by the coupled rule).
        """
        limits, model = self.limits, self.bundle.target.model
        ids, budget = read_request(
            prompt_ids, max_tokens, max_len=limits.max_len, vocab_size=model.vocab_size
        )
        if not isinstance(params, SamplingParams):
            raise UsageError(f"params is a {type(params).__name__}, expected SamplingParams")
        stop_ids = frozenset(model.eos_token_ids)
        request = Request(ids, params, budget, stop_ids, limits.max_len)
        detokenizer = Detokenizer(self.tokenizer)
        pieces: list[str] = []

        def add(piece: str) -> None:
            if piece:
                pieces.append(piece)
                if on_text is not None:
                    on_text(piece)

        with self._one_at_a_time():
            stats = self._pair.decoder.run([request], lambda _row, new: add(detokenizer.feed(new)))
            add(detokenizer.flush())
        assert request.finish_reason is not None
        return Completion(
            text="".join(pieces),
            token_ids=tuple(request.generated),
            finish_reason=request.finish_reason.value,
            mode=self.mode,
            note=self.note,
            prompt_tokens=len(ids),
            stats=stats,
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

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        """Refuse a second request, of another thread or from ``on_text``: two would mix."""
        if self._is_closed:
            raise UsageError("this LLM is closed; open the bundle again with LLM.open")
        if not self._turn.acquire(blocking=False):
            raise UsageError(
                "this LLM is in the middle of another request and runs one at a time; wait for "
                "it, or open one LLM a thread"
            )
        try:
            yield
        finally:
            self._turn.release()

    def close(self) -> None:
        """Free engines, caches and threads; idempotent. A request that runs fails."""
        self._is_closed = True
        self._pair.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def score(bundle: Path, role: str, ids: Sequence[int]) -> np.ndarray:
    """An engine's logits after each of ``ids``, float32 [len(ids), output vocabulary].

    Plain causal scoring of one text, for checking a build against its checkpoint. ``role`` is
    "target" or "draft".
    """
    if role not in (TARGET, DRAFT):
        raise UsageError(f"role is {role!r}, expected {TARGET!r} or {DRAFT!r}")
    opened = open_bundle(bundle)
    manifest = opened.target if role == TARGET else opened.draft
    if manifest is None:
        raise UsageError(f"{bundle} has no draft to score with")
    tokens, _ = read_request(
        ids, 1, max_len=manifest.limits.max_len, vocab_size=manifest.model.vocab_size
    )
    device = HostDevice()
    try:
        session = OrtSession(
            opened.path / role, manifest, device, num_threads=len(available_cores()), num_slots=1
        )
        session.load()
        stride = opened.manifest.limits.max_branches if role == DRAFT else 0
        return score_text(session, SlotLayout(manifest.kv, stride), tokens)
    finally:
        device.close()


def _count(name: str, value: int | None) -> int | None:
    """A limit given by the caller as a plain int; None leaves it to the bundle."""
    number = None if value is None else whole_number(value)
    if value is not None and (number is None or number < 0):
        raise UsageError(f"{name} is {value!r}, expected a whole number of at least 0")
    return number


def _check_depth(placement: Placement, num_draft: int, num_branches: int) -> None:
    mode = placement.mode
    if mode != "ar" and num_draft < 1:
        raise UsageError(
            f"mode {mode} needs at least one drafted token: --num-draft 1, here or, where the "
            "bundle was built with none, when it is rebuilt"
        )
    if mode == "ssd" and num_branches < 1:
        raise UsageError(
            "mode ssd needs at least one branch: --branches 1 or, where the bundle was built "
            "with none, a rebuild with --max-branches 1 or more"
        )
