"""A toy pair on any device: a target with a known law and a draft that often agrees with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from engines.manifest import DRAFT, TARGET, Limits
from runtime.backends.api import Session
from runtime.backends.toy import ToySession
from runtime.device.api import Device
from runtime.request import Request
from runtime.round import draft_side, target_side
from runtime.sampling.api import rule
from runtime.sampling.logprobs import token_logprobs
from runtime.sampling.params import SamplingParams
from runtime.sampling.proposal import Nothing
from runtime.scheduler import OnRound, Scheduler, Stats
from runtime.spec.drafter import Drafter
from runtime.spec.fallback import Fallback
from runtime.spec.length import Lengths
from runtime.spec.plan import Policy
from runtime.spec.statistics import OutcomeStatistics
from runtime.workers.draft import DraftWorker
from runtime.workers.lookup import LookupWorker
from runtime.workers.mailbox import Mailbox
from runtime.workers.target import TargetWorker

VOCAB = 12


def tables(
    seed: int, *, vocab: int = VOCAB, agreement: float = 2.0, draft_vocab: int | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Target and draft logits tables and the draft's vocabulary map (None when it is whole)."""
    random = np.random.default_rng(seed)
    target = random.normal(0, 1.5, (vocab, vocab, vocab)).astype(np.float32)
    noise = random.normal(0, 1.5, target.shape).astype(np.float32)
    draft = (agreement * target + noise) / np.float32(agreement)
    if draft_vocab is None:
        return target, draft, None
    ids = np.sort(random.permutation(vocab)[:draft_vocab]).astype(np.int64)
    return target, np.ascontiguousarray(draft[:, :, ids]), ids


def plain(table: np.ndarray, request: Request) -> Request:
    """Decode ``request`` one token at a time with nothing but the target's table."""
    text, chosen = list(request.prompt), rule("coupled")
    while request.finish_reason is None:
        logits = table[text[-2] if len(text) > 1 else 0, text[-1]]
        token = chosen.verify(logits[None], Nothing(), request.params, len(text)).bonus
        asked = request.num_logprobs
        logprobs = [] if asked is None else [token_logprobs(logits, token, asked)]
        request.commit([token], logprobs)
        text.append(token)
    return request


class ToyPair:
    """One mode's scheduler over toy sessions; ``target_session`` and ``draft_session`` are open
    for inspection."""

    def __init__(
        self,
        device: Device,
        mode: str,
        *,
        table_seed: int = 0,
        num_draft: int = 4,
        num_branches: int = 8,
        max_len: int = 96,
        max_batch: int = 1,
        verify: str = "coupled",
        agreement: float = 2.0,
        vocab: int = VOCAB,
        draft_vocab: int | None = None,
        min_tokens: int = 1,
        draft_knows: int | None = None,
        fallback: Fallback = Fallback.ZERO,
        saguaro: float = 1.0,
        lengths: Lengths | None = None,
        drafter: Drafter = Drafter.MODEL,
        has_engine: bool = True,
        policy: Policy | None = None,
        on_round: OnRound | None = None,
        draft_timeout_s: float | None = None,
        prefix_reuse: bool = True,
        wrap: Callable[[ToySession], Session] = lambda session: session,
    ) -> None:
        """``draft_knows`` cuts the draft's embedding to so many ids (a padded target has more).
        Without ``has_engine`` all that is drafted is looked up. ``wrap`` puts both sessions into
        others."""
        limits = Limits(max_len, max_batch, num_draft, max(1, num_branches))
        target, draft, ids = tables(
            table_seed, vocab=vocab, agreement=agreement, draft_vocab=draft_vocab
        )
        self.device = device
        self.max_len = max_len
        self.mailbox = Mailbox(device, max_batch, num_draft)
        shared = rule(verify, saguaro=saguaro)
        self.target_session = ToySession(TARGET, target, limits, device)
        self.target = TargetWorker(
            wrap(self.target_session), shared, self.mailbox, min_tokens=min_tokens
        )
        near = target_side(device.create_stream("target"), self.target)
        far = aside = None
        if mode != "ar" and not has_engine:
            self.draft = LookupWorker(device, self.mailbox)
            far = draft_side(near.stream, self.draft)
        elif mode != "ar":
            known = draft_knows or vocab
            kept = slice(known) if ids is None else ids < known
            draft = np.ascontiguousarray(draft[:known, :known, kept])
            ids = None if ids is None else ids[kept]
            self.draft_session = ToySession(DRAFT, draft, limits, device, vocab_map=ids)
            self.draft = DraftWorker(
                wrap(self.draft_session),
                shared,
                self.mailbox,
                num_draft=num_draft,
                num_branches=num_branches,
                statistics=OutcomeStatistics(num_draft, num_branches),
                fallback=fallback,
                lengths=lengths,
                drafter=drafter,
            )
            far = draft_side(device.create_stream("draft"), self.draft)
            lookups = LookupWorker(device, self.mailbox, self.draft.choice)
            aside = draft_side(near.stream, lookups)
        self.scheduler = Scheduler(
            device,
            mode,
            near,
            far,
            aside,
            max_batch=max_batch,
            policy=policy,
            on_round=on_round,
            draft_timeout_s=draft_timeout_s,
            prefix_reuse=prefix_reuse,
        )

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        params: Sequence[SamplingParams],
        *,
        max_tokens: int = 24,
        stop_ids: Sequence[int] = (),
        on_tokens: Callable[[int, list[int]], None] | None = None,
    ) -> tuple[list[Request], Stats]:
        requests = [
            Request(prompt, law, max_tokens, frozenset(stop_ids), self.max_len)
            for prompt, law in zip(prompts, params, strict=True)
        ]
        stats = self.scheduler.run(requests, on_tokens)
        return requests, stats
