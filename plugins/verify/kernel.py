"""Verification as a kernel, with launches of typical size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from plugins.cuda.kernel import Case, Kernel, Trial
from plugins.law import kernel as law
from plugins.law.reference import LawParams, Sampling
from plugins.verify.args import ACCEPT_BEST, ARGS, BEST_ROWS, BRACKETS, COUPLED, RATIO, workspace
from plugins.verify.reference import verify
from plugins.verify.sampled import Outcome, verify_coupled, verify_ratio

SUPPORT = 32
PLAIN = LawParams(temperature=1.0)
CUT = LawParams(temperature=0.75, top_k=50, top_p=0.9375)
NUCLEUS = LawParams(temperature=0.75, top_p=0.9375, min_p=0.03125)
"""float32 holds their values exactly, so the kernels' parameters are the reference's."""


def random_case(
    rng: np.random.Generator,
    rule: str,
    params: Sequence[LawParams],
    *,
    rows_each: int,
    vocab_size: int,
    num_slices: int,
    is_ragged: bool = False,
) -> Case:
    """Drafted blocks of bfloat16 logits, one sequence for each of `params`, with their verdicts.

    Logits are such as a language model's, a few tall ones above many that mean nothing, and the
    drafts are likely tokens. `rule` is "greedy", "coupled" or "ratio"; all sequences have
    K drafts unless the block `is_ragged`, which bans a few ids too.
    """
    batch = len(params)
    shape = (batch, rows_each)
    logits = 2 * rng.standard_normal((*shape, vocab_size), np.float32)
    tall = rng.integers(0, vocab_size, (*shape, SUPPORT))
    np.put_along_axis(logits, tall, rng.uniform(5, 16, tall.shape).astype(np.float32), -1)
    stored = (logits.view(np.uint32) >> 16).astype(np.uint16)
    logits = (stored.astype(np.uint32) << 16).view(np.float32)
    samplings = [
        _sampling(rng, each, tall[row, 0, :2].tolist() if is_ragged else [])
        for row, each in enumerate(params)
    ]
    num_draft = np.full(batch, rows_each - 1)
    if is_ragged:
        num_draft[1:] = rng.integers(0, rows_each, batch - 1)
    drafts, q_ids, q_probs = _drafts(rng, logits[:, :-1], tall[:, :-1])
    judged = {
        "greedy": lambda: Outcome(*verify(logits, drafts, num_draft), np.zeros(batch, np.int64)),
        "coupled": lambda: verify_coupled(logits, drafts, num_draft, samplings),
        "ratio": lambda: verify_ratio(logits, drafts, num_draft, q_ids, q_probs, samplings),
    }[rule]()
    expected = {"accepted": judged.accepted, "next": judged.next}
    expected |= {"status": judged.status.astype(np.int32)}
    # One thread a block makes the smallest tiles, so the memory serves any number of threads.
    shapes = law.workspace(batch * rows_each, num_slices)
    shapes |= workspace(batch, rows_each, vocab_size, num_slices, num_threads=1)
    values = {
        **ARGS.blank(),
        **law.params_of(samplings),
        **{name: np.zeros(size, dtype) for name, (size, dtype) in shapes.items()},
        **{name: np.zeros_like(array) for name, array in expected.items()},
        "logits": stored,
        "drafts": drafts,
        "num_draft": num_draft,
        "num_sequences": batch,
        "rows_each": rows_each,
        "pitch": vocab_size,
        "vocab_size": vocab_size,
        "num_slices": num_slices,
        "q_ids": q_ids,
        "q_probs": q_probs,
        "support": SUPPORT,
    }
    return Case(values, expected, in_torch=_IN_TORCH[rule])


def _sampling(rng: np.random.Generator, params: LawParams, banned: list[int]) -> Sampling:
    """The ids are banned at the first two places."""
    first = int(rng.integers(0, 2**17))
    return Sampling(
        params,
        seed=int(rng.integers(0, 2**63)),
        first_position=first,
        banned_ids=tuple(dict.fromkeys(banned)),
        banned_before=first + 2,
    )


def _drafts(
    rng: np.random.Generator, logits: npt.NDArray[np.float32], tall: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.float64]]:
    """A token of each place, mostly the likeliest, with a law over the tall ids, each id once."""
    weights = np.exp(np.take_along_axis(logits, tall, -1).astype(np.float64))
    ids = np.sort(tall, axis=-1)
    weights = np.take_along_axis(weights, np.argsort(tall, axis=-1, kind="stable"), -1)
    is_again = np.zeros(ids.shape, bool)
    is_again[..., 1:] = ids[..., 1:] == ids[..., :-1]
    q_ids = np.where(is_again, -1, ids).astype(np.int32)
    q_probs = np.where(is_again, 0, weights)
    q_probs /= q_probs.sum(axis=-1, keepdims=True)
    rank = np.where(rng.random(ids.shape[:-1]) < 0.8, -1, -2)
    chosen = np.take_along_axis(q_probs.argsort(-1), rank[..., None], -1)
    return np.take_along_axis(ids, chosen, -1)[..., 0], q_ids, q_probs


def num_bytes(num_rows: int, vocab_size: int, *, num_passes: int = 1, itemsize: int = 2) -> int:
    """What must cross the memory bus: the logits of the rows that count, once a pass.

    A cut makes a second pass of its rows. Left out: parameters, drafts and verdicts, a few bytes a
    row, and the workspace, a few kilobytes a row that stay in the cache.
    """
    return num_passes * num_rows * vocab_size * itemsize


def _greedy_in_torch(fields: Mapping[str, Any]) -> object:
    import torch

    best = fields["logits"].view(torch.bfloat16).argmax(-1)
    stands = (best[:, :-1] == fields["drafts"]).cumprod(-1)
    return best.gather(1, stands.sum(-1, keepdim=True))


def _coupled_in_torch(fields: Mapping[str, Any]) -> object:
    """Noise from torch's own generator; where a row truncates all are sorted, as samplers do."""
    import torch

    logits = _processed(fields["logits"].view(torch.bfloat16).float(), fields)
    noise = logits.new_empty(logits.shape).exponential_().log_().neg_()
    best = noise.add_(logits).argmax(-1)
    stands = (best[:, :-1] == fields["drafts"]).cumprod(-1)
    return best.gather(1, stands.sum(-1, keepdim=True))


def _ratio_in_torch(fields: Mapping[str, Any]) -> object:
    """Acceptance, and a draw from the residual of the first rejected place."""
    import torch

    laws = _processed(fields["logits"].view(torch.bfloat16).float(), fields).softmax(-1)
    dense = laws.new_zeros(laws[:, :-1].shape)
    dense.scatter_add_(2, fields["q_ids"].clamp(min=0).long(), fields["q_probs"].to(laws.dtype))
    at = fields["drafts"].unsqueeze(-1)
    p, q = laws[:, :-1].gather(2, at), dense.gather(2, at)
    stands = (p.new_empty(p.shape).uniform_() * q < p).squeeze(-1).long().cumprod(-1)
    stop = stands.sum(-1)
    rest = laws.clone()
    rest[:, :-1] -= dense
    rest = rest.clamp_(min=0)[torch.arange(len(stop), device=stop.device), stop]
    return rest.add_(1e-9).multinomial(1)


def _processed(logits: Any, fields: Mapping[str, Any]) -> Any:
    """l / T, and what top-k and top-p leave of it where any row asks for them."""
    logits = logits / fields["temperature"].clamp(min=1e-3)[:, None, None]
    top_k, top_p = fields["top_k"], fields["top_p"]
    if bool((top_k == 0).all()) and bool((top_p >= 1).all()):
        return logits
    ordered, order = logits.sort(-1, descending=True)
    last = top_k.long().masked_fill(top_k == 0, logits.shape[-1])[:, None, None]
    mass = ordered.softmax(-1).cumsum(-1)
    place = mass.new_ones(mass.shape).cumsum(-1)
    gone = (place > last) | (mass - ordered.softmax(-1) > top_p[:, None, None])
    ordered = ordered.masked_fill(gone, float("-inf"))
    return logits.scatter(-1, order, ordered)


_IN_TORCH = {"greedy": _greedy_in_torch, "coupled": _coupled_in_torch, "ratio": _ratio_in_torch}
_ENTRIES = {
    "greedy": (f"{BEST_ROWS}_bf16", ACCEPT_BEST),
    "coupled": (f"{BRACKETS}_bf16", f"{COUPLED}_bf16"),
    "ratio": (f"{BRACKETS}_bf16", f"{RATIO}_bf16"),
}


def trial(
    rule: str, params: Sequence[LawParams], *, rows_each: int, vocab_size: int, note: str
) -> Trial:
    """One sequence for each of `params`, with K = `rows_each` - 1 drafts, or fewer if mixed."""
    num_rows = len(params) * rows_each
    num_slices = law.slices_of(num_rows, vocab_size)
    truncates = any(each.truncates for each in params)
    *first, entry = _ENTRIES[rule]
    return Trial(
        label=f"{note} B={len(params)} K={rows_each - 1} V={vocab_size}",
        entry=entry,
        first=tuple(first) if truncates or rule == "greedy" else (),
        num_blocks=num_rows * num_slices,
        num_threads=law.NUM_THREADS,
        num_bytes=num_bytes(num_rows, vocab_size, num_passes=2 if truncates else 1),
        make=lambda rng: random_case(
            rng,
            rule,
            params,
            rows_each=rows_each,
            vocab_size=vocab_size,
            num_slices=num_slices,
            is_ragged=len(set(params)) > 1,
        ),
    )


def _trials() -> tuple[Trial, ...]:
    mixed = [PLAIN, LawParams(), CUT, NUCLEUS]
    small = {"rows_each": 3, "vocab_size": 5000}
    # Rows that begin at any address, and drafts of the block that count as generated.
    penalised = [LawParams(temperature=1.0, repetition=1.5, presence=0.5, frequency=0.25), CUT]
    odd = {"rows_each": 4, "vocab_size": 5003}
    llama, qwen = {"vocab_size": 128256}, {"vocab_size": 151936}
    return (
        trial("coupled", mixed, note="coupled, mixed", **small),
        trial("ratio", mixed, note="ratio, mixed", **small),
        trial("coupled", penalised, note="coupled, mixed, penalties, odd rows", **odd),
        trial("ratio", penalised, note="ratio, mixed, penalties, odd rows", **odd),
        trial("greedy", [LawParams()], note="greedy", rows_each=5, **llama),
        trial("greedy", [LawParams()] * 16, note="greedy", rows_each=5, **llama),
        trial("coupled", [PLAIN], note="coupled", rows_each=5, **llama),
        trial("coupled", [PLAIN] * 16, note="coupled", rows_each=5, **llama),
        trial("coupled", [PLAIN] * 64, note="coupled", rows_each=5, **qwen),
        trial("coupled", [CUT] * 16, note="coupled, top-k and top-p", rows_each=5, **llama),
        trial("coupled", [NUCLEUS] * 16, note="coupled, top-p and min-p", rows_each=5, **llama),
        trial("ratio", [PLAIN], note="ratio", rows_each=5, **llama),
        trial("ratio", [PLAIN] * 16, note="ratio", rows_each=5, **llama),
        trial("ratio", [NUCLEUS] * 16, note="ratio, top-p and min-p", rows_each=5, **llama),
    )


KERNEL = Kernel(
    name="verify",
    source=Path(__file__).with_name("kernel.cu"),
    args=ARGS,
    entries=(
        *(
            f"{entry}_{suffix}"
            for entry in (BRACKETS, COUPLED, RATIO, BEST_ROWS)
            for suffix in law.SUFFIXES.values()
        ),
        ACCEPT_BEST,
    ),
    trials=_trials(),
)
