"""How long each kind of call takes on this machine: measured once, remembered per build."""

from __future__ import annotations

import statistics as stats
from collections.abc import Callable
from time import perf_counter

import numpy as np

from engines.bundle import Bundle
from engines.codec import DecodeError, decode, encode
from runtime.backends.api import CallShape, Session
from runtime.backends.onnxruntime import runtime_identity
from runtime.device.cores import available_cores, cpu_quota
from runtime.kv.layout import SlotLayout, branch_mask
from runtime.loader import LoadedPair, on_stream
from runtime.memo import Memo
from runtime.placement import place
from runtime.spec.cost import StepTimes
from runtime.workers.calls import feed_one

REPEATS = 7
CONTEXT = 192


def machine_key(bundle: Bundle) -> str:
    """What step times hang on: the build, the executor, the cores."""
    return ":".join(
        (
            bundle.manifest.build_key,
            runtime_identity(),
            f"cores {available_cores()} of {cpu_quota()}",
        )
    )


def measure(
    bundle: Bundle, num_draft: int, num_branches: int, memo: Memo | None = None
) -> StepTimes:
    """Median seconds of each kind of call, from the memo or measured now (about a second)."""
    memo = memo or Memo()
    key = f"steps:{machine_key(bundle)}:K {num_draft} W {num_branches}"
    known = memo.get(key)
    if known is not None:
        try:
            return decode(StepTimes, known)
        except DecodeError:
            pass
    times = _measure(bundle, num_draft, num_branches, memo)
    memo.put(key, encode(times))
    return times


def _measure(bundle: Bundle, num_draft: int, num_branches: int, memo: Memo) -> StepTimes:
    cores, quota = available_cores(), cpu_quota()

    def load(mode: str) -> LoadedPair:
        placement = place(mode, cores, quota, has_draft=True)
        return LoadedPair(
            bundle,
            placement,
            verify="coupled",
            num_draft=num_draft,
            num_branches=num_branches,
            memo=memo,
        )

    pair = load("sd")
    try:
        target, draft = pair.target_session, pair.draft_session
        decode_s = _time(pair, _trunk_call(target, 0, pair.invariance.min_tokens), on_draft=False)
        verify_all_s = _time(pair, _trunk_call(target, 0, num_draft + 1), on_draft=False)
        draft_s = _time(
            pair, _trunk_call(draft, bundle.manifest.limits.max_branches, 1), on_draft=True
        )
    finally:
        pair.close()
    if num_branches == 0:
        return StepTimes(decode_s, verify_all_s, verify_all_s, decode_s, draft_s, draft_s)
    pair = load("ssd")
    try:
        target, draft = pair.target_session, pair.draft_session
        return StepTimes(
            decode_s=decode_s,
            verify_all_s=verify_all_s,
            verify_s=_time(pair, _trunk_call(target, 0, num_draft + 1), on_draft=False),
            verify_none_s=_time(
                pair, _trunk_call(target, 0, pair.invariance.min_tokens), on_draft=False
            ),
            draft_s=draft_s,
            branches_s=_time(pair, _branch_call(draft, num_branches), on_draft=True),
        )
    finally:
        pair.close()


def _time(pair: LoadedPair, call: Callable[[], object], *, on_draft: bool) -> float:
    """Median seconds of ``call`` on its side's stream, after a warm-up."""
    taken: list[float] = []

    def repeat() -> None:
        for _ in range(REPEATS + 2):
            start = perf_counter()
            call()
            taken.append(perf_counter() - start)

    on_stream(pair.draft_stream if on_draft else pair.target_stream, repeat, "calibrate")
    return stats.median(taken[2:])


def _trunk_call(session: Session, stride: int, num_tokens: int) -> Callable[[], object]:
    """A call that continues a text of CONTEXT tokens (or half of what fits)."""
    layout = SlotLayout(session.manifest.kv, stride)
    start = min(CONTEXT, session.manifest.limits.max_len // 2)
    return lambda: feed_one(session, layout, 0, start, [0] * num_tokens)


def _branch_call(session: Session, num_branches: int) -> Callable[[], None]:
    """A step of all branches at depth 0."""
    layout = SlotLayout(session.manifest.kv, session.manifest.limits.max_branches)

    def call() -> None:
        start = min(CONTEXT, session.manifest.limits.max_len // 2)
        session.bind_rows(layout.rows_for(start))
        step = session.prepare(CallShape(0, 1, num_branches, num_branches))
        step.tokens[0] = 0
        step.positions[0] = start
        step.write_at[0] = layout.scratch_row(0)
        branch_mask(step.mask[0], layout, np.full(num_branches, start), 0)
        step.logit_rows[0] = range(num_branches)
        step.num_draft[0] = 0
        step.run()

    return call
