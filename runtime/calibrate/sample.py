"""Short texts of the target on built-in prompts, and what the draft thinks of them.

The draft maker's figures are for the maker's texts. A few texts of the target's own tell more
about this pair: how far drafts are accepted, where bonus tokens rank, and how often a text repeats
itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from time import perf_counter

import numpy as np

from engines.bundle import Bundle
from engines.codec import DecodeError, decode, encode
from engines.errors import SsdError
from runtime.backends.api import Session
from runtime.device.api import Stream
from runtime.device.cores import available_cores, cpu_quota
from runtime.kv.layout import SlotLayout
from runtime.loader import LoadedPair, on_stream
from runtime.memo import Memo
from runtime.placement import place
from runtime.request import Request
from runtime.sampling.logits import law
from runtime.sampling.params import SamplingParams
from runtime.sampling.proposal import MAX_SUPPORT
from runtime.sampling.ratio import draft_law
from runtime.spec.replay import RankedText
from runtime.spec.saguaro import PairLaws
from runtime.text.chat import ChatTemplate
from runtime.text.tokenizer import Tokenizer
from runtime.workers.prefill import score_text

TEXT_TOKENS = 32
SAMPLE_S = 3.0
"""Another text is begun while less than this has passed."""


def ranked_texts(bundle: Bundle, memo: Memo) -> list[RankedText]:
    """Greedy texts with the draft's ranks, from the memo or written now (a few seconds).

    Empty where no prompt fits the bundle. The bundle must have a draft.
    """
    key = f"texts:{bundle.manifest.build_key}"
    known = memo.get(key)
    if isinstance(known, list):
        try:
            return [decode(RankedText, text) for text in known]
        except DecodeError:
            pass
    with _sampler(bundle, memo) as sampler:
        texts = [
            RankedText(tuple(prompt), tuple(answer), sampler.ranks(prompt, answer))
            for prompt, answer in sampler.texts(SamplingParams())
        ]
    memo.put(key, encode(texts))
    return texts


def pair_laws(bundle: Bundle, temperature: float, memo: Memo) -> PairLaws | None:
    """Both models' laws along texts written at that temperature; None where no prompt fits."""
    params = SamplingParams(temperature=temperature)
    with _sampler(bundle, memo) as sampler:
        parts = [sampler.laws(prompt, answer, params) for prompt, answer in sampler.texts(params)]
    if not parts:
        return None
    return PairLaws(
        draft=np.concatenate([part.draft for part in parts]),
        target=np.concatenate([part.target for part in parts]),
        token_target=np.concatenate([part.token_target for part in parts]),
        token_rank=np.concatenate([part.token_rank for part in parts]),
        left=np.concatenate([part.left for part in parts]),
    )


@contextmanager
def _sampler(bundle: Bundle, memo: Memo) -> Iterator[_Sampler]:
    pair = LoadedPair(
        bundle,
        place("sd", available_cores(), cpu_quota(), has_draft=True),
        verify="coupled",
        num_draft=bundle.manifest.limits.num_draft,
        num_branches=0,
        max_batch=1,
        memo=memo,
    )
    try:
        yield _Sampler(bundle, pair)
    finally:
        pair.close()


class _Sampler:
    """Writes texts with the target and scores them with both engines."""

    def __init__(self, bundle: Bundle, pair: LoadedPair) -> None:
        self._bundle = bundle
        self._pair = pair
        self._ids_map = pair.draft_session.vocab_map
        output = range(pair.draft_session.manifest.model.output_vocab)
        known = output if self._ids_map is None else self._ids_map.tolist()
        self._draft_ids = {token: index for index, token in enumerate(known)}

    def texts(self, params: SamplingParams) -> Iterator[tuple[list[int], list[int]]]:
        """(prompt, answer) of one built-in prompt after the other, while there is time."""
        limits, model = self._bundle.manifest.limits, self._bundle.target.model
        started = perf_counter()
        for prompt in _prompts(self._bundle):
            if len(prompt) + TEXT_TOKENS > limits.max_len:
                continue
            stop_ids = frozenset(model.eos_token_ids)
            request = Request(prompt, params, TEXT_TOKENS, stop_ids, limits.max_len)
            self._pair.scheduler.run([request])
            if request.generated:
                yield prompt, request.generated
            if perf_counter() - started > SAMPLE_S:
                return

    def ranks(self, prompt: Sequence[int], answer: Sequence[int]) -> tuple[int, ...]:
        """The rank of each answer token among the draft's ids; one it has not comes last."""
        ranks = []
        for row, token in zip(self._draft_logits(prompt, answer), answer, strict=True):
            index = self._draft_ids.get(token)
            if index is None:
                ranks.append(row.size)
            else:
                ties = np.count_nonzero(row[:index] == row[index])
                ranks.append(int(np.count_nonzero(row > row[index]) + ties))
        return tuple(ranks)

    def laws(
        self, prompt: Sequence[int], answer: Sequence[int], params: SamplingParams
    ) -> PairLaws:
        """Both models' laws at each place of the answer."""
        count = len(answer)
        found = PairLaws(
            draft=np.zeros((count, MAX_SUPPORT)),
            target=np.zeros((count, MAX_SUPPORT)),
            token_target=np.zeros(count),
            token_rank=np.full(count, MAX_SUPPORT),
            left=np.arange(count, 0, -1),
        )
        rows = zip(
            self._draft_logits(prompt, answer),
            self._target_logits(prompt, answer),
            answer,
            strict=True,
        )
        for at, (draft_row, target_row, token) in enumerate(rows):
            q, p = draft_law(draft_row, params, self._ids_map), law(target_row, params)
            found.draft[at, : q.ids.size] = q.probs
            found.target[at, : q.ids.size] = p[q.ids]
            found.token_target[at] = p[token]
            among = np.flatnonzero(q.ids == token)
            if among.size:
                found.token_rank[at] = among[0]
        return found

    def _draft_logits(self, prompt: Sequence[int], answer: Sequence[int]) -> np.ndarray:
        session = self._pair.draft_session
        layout = SlotLayout(session.manifest.kv, session.manifest.limits.max_branches)
        vocab_size = session.manifest.model.vocab_size
        text = [token if token < vocab_size else 0 for token in (*prompt, *answer[:-1])]
        return _logits(self._pair.draft_stream, session, layout, text)[-len(answer) :]

    def _target_logits(self, prompt: Sequence[int], answer: Sequence[int]) -> np.ndarray:
        session = self._pair.target_session
        layout = SlotLayout(session.manifest.kv, 0)
        text = [*prompt, *answer[:-1]]
        return _logits(self._pair.target_stream, session, layout, text)[-len(answer) :]


def _logits(stream: Stream, session: Session, layout: SlotLayout, text: list[int]) -> np.ndarray:
    found: list[np.ndarray] = []
    on_stream(stream, lambda: found.append(score_text(session, layout, text)), "score")
    return found[0]


def _prompts(bundle: Bundle) -> Iterator[list[int]]:
    """The built-in prompts, as the model's users would send them."""
    tokenizer = Tokenizer(bundle.tokenizer_path.read_bytes())
    source = files("runtime") / "prompts" / "default.txt"
    for line in source.read_text(encoding="utf-8").splitlines():
        turn = _turn(bundle, line)
        yield tokenizer.encode(turn or line, add_special_tokens=turn is None)


def _turn(bundle: Bundle, text: str) -> str | None:
    """The text as a user's turn; None without a template, or with one that fails: it would fail
    the user, too, where it is asked for."""
    if bundle.chat_template_path is None:
        return None
    try:
        source = bundle.chat_template_path.read_bytes()
        template = ChatTemplate.from_bytes(source, bundle.manifest.special_tokens)
        return template.render([{"role": "user", "content": text}])
    except SsdError:
        return None
