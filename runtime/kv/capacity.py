"""How many rows of a slot a text can ever touch, as formulas.

M = max_len, K = num_draft, W = branches. While a text of n tokens runs, n <= M - 1. With m drafted
tokens it may grow by m + 1, so drafts are cut to

    m <= min(K, limit - n - 1)      limit = min(M, prompt + max_tokens)      hence n + m <= M - 1

    call                           first position      tokens fed         rows touched, at most
    -----------------------------  ------------------  -----------------  ---------------------
    verify                         n - 1               max(K + 1, 2)      M - 2 + max(K + 1, 2)
    root pass, drafting            <= n + m - 1        K + 1              M + K - 1
    dummy in either                <= M - 2            max(K + 1, 2)      M - 2 + max(K + 1, 2)
    prompt (all but its last)      a multiple of 16    padded to 16       round_up(M - 2, 16)
    commit, after it n + m tokens  n - 1               m (copied)         M - 2

A call is as wide as its widest row, so each row is counted with the full width. The width of 2
without drafts is for engines whose one-token calls are padded (``runtime.workers.probe``). Hence

    trunk rows   >= max(M + max(K, 1) - 1, round_up(M - 2, 16))
    scratch rows  = K * W                 one round's branches; a target has none
    logits rows   = K + 1                 of a verification, and those kept for the next fork

and a session's caches take slots * (scratch + trunk) * bytes_per_row (``KvLayout.bytes_for``):
per sequence, never shared. ``engines.profiles.trunk_rows`` builds round_up(M + K, 16).
"""

from __future__ import annotations

from engines.errors import CapacityError
from engines.manifest import KvLayout, Limits
from engines.profiles import PROMPT_STEP, round_up


def most_drafts(length: int, limit: int, num_draft: int) -> int:
    """Drafted tokens that can still count for a text of ``length`` tokens, ``limit`` at its end."""
    return max(0, min(num_draft, limit - length - 1))


def least_trunk_rows(max_len: int, num_draft: int) -> int:
    """Trunk rows that no call of the runtime reaches beyond; see the table."""
    return max(max_len + max(num_draft, 1) - 1, round_up(max(0, max_len - 2), PROMPT_STEP))


def require_capacity(kv: KvLayout, limits: Limits, *, num_draft: int, num_branches: int) -> None:
    """Raise CapacityError unless the built caches hold K = ``num_draft``, W = ``num_branches``.

    A write past the end fails as a whole (ONNX Runtime) or is dropped in silence (TensorRT), so
    it is refused before the first call.
    """
    asked = (
        ("num-draft", "drafted tokens", num_draft, limits.num_draft),
        ("max-branches", "branches", num_branches, limits.max_branches),
    )
    for option, what, found, built in asked:
        if found > built:
            raise CapacityError(
                f"{found} {what} asked for, this engine was built for {built}; use at most that "
                f"or rebuild with --{option} {found}"
            )
    rows = least_trunk_rows(limits.max_len, num_draft)
    if kv.trunk_rows < rows or kv.scratch_rows < num_draft * num_branches:
        raise CapacityError(
            f"the caches have {kv.trunk_rows} trunk and {kv.scratch_rows} scratch rows a slot, "
            f"{rows} and {num_draft * num_branches} are needed; rebuild the bundle"
        )
