"""The sampling parameters of a side's texts on its device, and launches of the rules' kernels.

Greedy and sampling rows share a launch: temperature 0 is a value like any other. The rule is the
coupled one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from engines.errors import CapacityError
from engines.manifest import EngineManifest
from plugins.law import kernel as law
from plugins.layer import DeviceTensor
from plugins.sample import args as sample
from plugins.sample.sampled import MAX_CANDIDATES
from plugins.verify import args as verify
from runtime.device.api import Device
from runtime.resident.kernels import Work
from runtime.resident.slabs import Shapes, Slab
from runtime.sampling.params import SamplingParams

MAX_BANNED_IDS = 64
"""Ids that a text's ``min_tokens`` may ban: its stop tokens."""
MAX_RANKS = MAX_CANDIDATES - 1
"""Candidates that can be ranked at a place, beside the drafted token itself."""

Sizes = Iterable[tuple[int, int]]
"""(rows, logits a row) of calls."""
Memory = Mapping[str, tuple[tuple[int, ...], str]]
"""Name -> (shape, numpy type), as ``plugins`` gives the memory of a launch."""


class TargetLaws:
    """The coupled rule's verdicts."""

    def __init__(
        self, device: Device, work: Work, manifest: EngineManifest, num_slots: int, sizes: Sizes
    ) -> None:
        """``sizes`` of all calls to come."""
        vocab = manifest.model.output_vocab
        needs = [_verify_memory(batch * each, vocab) for batch, each in sizes]
        self._passes = _Passes(device, work, manifest, num_slots, needs)

    def put(self, index: int, params: SamplingParams) -> None:
        """The text that a slot holds from now on. Raises CapacityError; see ``law_of``."""
        self._passes.put(index, law_of(params))

    def move(self, old: int, new: int) -> None:
        """The text of a slot is in another one from now on."""
        self._passes.move(old, new)

    def enqueue(
        self,
        logits: DeviceTensor,
        *,
        drafts: int,
        drafts_stride: int,
        num_draft: int,
        length: int,
        accepted: int,
        bonus: int,
        status: int,
        truncates: bool,
    ) -> None:
        """Judge the rows of a call. All but ``drafts_stride`` are addresses of one number a row.

        ``drafts`` are target ids, the rows ``drafts_stride`` apart. ``truncates``: whether a text
        may cut ids, which takes one pass more.
        """
        self._passes.launch(
            "verify",
            (verify.BRACKETS, verify.COUPLED) if truncates else (verify.COUPLED,),
            logits,
            {
                "drafts": drafts,
                "drafts_stride": drafts_stride,
                "num_draft": num_draft,
                "first_position": length,
                "accepted": accepted,
                "next": bonus,
                "status": status,
            },
            num_threads=law.NUM_THREADS,
        )


class DraftLaws:
    """The coupled rule's drafted tokens, and what else the draft thinks likely there."""

    def __init__(
        self,
        device: Device,
        work: Work,
        manifest: EngineManifest,
        num_slots: int,
        sizes: Sizes,
        *,
        num_candidates: int,
        vocab_map: np.ndarray | None,
    ) -> None:
        """``sizes`` of all calls to come; ``vocab_map`` as a session has it."""
        self.num_candidates = num_candidates
        vocab = manifest.model.output_vocab
        needs = [_sample_memory(batch * each, vocab, num_candidates) for batch, each in sizes]
        self._passes = _Passes(device, work, manifest, num_slots, needs)
        self._work = work
        self._vocab_map = vocab_map
        self._known_ids: dict[int, int] | None = None
        self._ids_map: Slab | None = None
        if vocab_map is not None:
            self._known_ids = {int(token): own for own, token in enumerate(vocab_map)}
            self._ids_map = Slab(device, "draft ids", {"ids": ("int32", vocab_map.shape)})

    def load(self) -> None:
        """Write what never changes, as work of the stream."""
        if self._ids_map is not None and self._vocab_map is not None:
            self._work.put([(self._ids_map["ids"], self._vocab_map.astype(np.int32))])

    def put(self, index: int, params: SamplingParams) -> None:
        """See ``TargetLaws.put``."""
        self._passes.put(index, law_of(params, self._known_ids))

    def move(self, old: int, new: int) -> None:
        """See ``TargetLaws.move``."""
        self._passes.move(old, new)

    def enqueue(
        self, logits: DeviceTensor, *, positions: int, sample_to: int, lists: int, truncates: bool
    ) -> None:
        """Draft the token behind each row of a call; addresses.

        Args:
            positions: int64 [B, R], where the tokens stand that were fed.
            sample_to: int64 [B, R], the drafted tokens, in target ids.
            lists: int64 [B, R, ``num_candidates``], the likeliest ids, the drafted one first.
            truncates: as in ``TargetLaws.enqueue``.
        """
        self._passes.launch(
            "sample",
            (sample.BRACKETS, sample.SAMPLE) if truncates else (sample.SAMPLE,),
            logits,
            {
                "positions": positions,
                "position_offset": 1,
                "ids_map": None if self._ids_map is None else self._ids_map["ids"],
                "sample": sample_to,
                "candidates": lists,
                "list_size": sample.list_size(self.num_candidates, 0),
                "num_candidates": self.num_candidates,
            },
            num_threads=sample.NUM_THREADS,
        )


class _Passes:
    """The rows' parameters, the passes' memory, and their grid."""

    def __init__(
        self,
        device: Device,
        work: Work,
        manifest: EngineManifest,
        num_slots: int,
        needs: Sequence[Memory],
    ) -> None:
        self._work = work
        self._vocab = manifest.model.output_vocab
        self._rows = Slab(device, f"{manifest.role} laws", _row_shapes(num_slots))
        self._memory = Slab(device, f"{manifest.role} passes", _largest(needs))

    def put(self, index: int, values: Mapping[str, object]) -> None:
        self._work.put(self._rows.segments(index, values))

    def move(self, old: int, new: int) -> None:
        for field in self._rows.shapes:
            source, target = self._rows.row(field, old), self._rows.row(field, new)
            self._work.copy(source, target, self._rows.row_bytes(field))

    def launch(
        self,
        kernel: str,
        entries: Sequence[str],
        logits: DeviceTensor,
        fields: Mapping[str, object],
        *,
        num_threads: int,
    ) -> None:
        """The entries, on one grid: each row of logits in as many slices as fill the GPU."""
        batch, each, pitch = logits.shape
        num_slices = law.slices_of(batch * each, self._vocab)
        values = {
            **self._rows.addresses,
            **self._memory.addresses,
            "num_bans": MAX_BANNED_IDS,
            "logits": logits.address,
            "num_sequences": batch,
            "rows_each": each,
            "pitch": pitch,
            "vocab_size": self._vocab,
            "num_slices": num_slices,
            **fields,
        }
        for entry in entries:
            self._work.launch(
                kernel,
                f"{entry}_{law.SUFFIXES[logits.dtype]}",
                values,
                num_blocks=batch * each * num_slices,
                num_threads=num_threads,
            )


def law_of(params: SamplingParams, known_ids: Mapping[int, int] | None = None) -> dict[str, object]:
    """A text's row of the parameters. ``known_ids`` are the engine's own ids of the target's, None
    where they are the same. Raises CapacityError for more banned ids than there is room for."""
    banned = params.banned_ids
    if len(banned) > MAX_BANNED_IDS:
        raise CapacityError(
            f"min_tokens bans {len(banned)} stop tokens, on a device at most {MAX_BANNED_IDS}; "
            "give fewer stop_token_ids"
        )
    if known_ids is not None:
        banned = tuple(known_ids[token] for token in banned if token in known_ids)
    return {
        "temperature": params.temperature,
        "top_k": min(params.top_k, law.MAX_VOCAB),
        "top_p": params.top_p,
        "min_p": params.min_p,
        "seed": params.seed,
        "ban_before": params.banned_before,
        "ban_ids": [*banned, *[-1] * (MAX_BANNED_IDS - len(banned))],
    }


def _row_shapes(num_slots: int) -> Shapes:
    return {
        "temperature": ("float32", (num_slots,)),
        "top_k": ("int32", (num_slots,)),
        "top_p": ("float32", (num_slots,)),
        "min_p": ("float32", (num_slots,)),
        "seed": ("uint64", (num_slots,)),
        "ban_before": ("int64", (num_slots,)),
        "ban_ids": ("int32", (num_slots, MAX_BANNED_IDS)),
    }


def _verify_memory(num_rows: int, vocab: int) -> Memory:
    num_slices = law.slices_of(num_rows, vocab)
    own = verify.workspace(num_rows, 1, vocab, num_slices)
    ratio_only = ("tile_octaves", "tile_masses")
    kept = {name: each for name, each in own.items() if name not in ratio_only}
    return {**law.workspace(num_rows, num_slices), **kept}


def _sample_memory(num_rows: int, vocab: int, num_candidates: int) -> Memory:
    num_slices = law.slices_of(num_rows, vocab)
    num_ranked = sample.list_size(num_candidates, 0)
    own = sample.workspace(num_rows, num_slices, num_ranked)
    return {**law.workspace(num_rows, num_slices), **own, "status": ((num_rows,), "int32")}


def _largest(needs: Sequence[Memory]) -> Shapes:
    """Each array as large as the launch that wants most of it."""
    sizes = {name: max(int(np.prod(need[name][0])) for need in needs) for name in needs[0]}
    return {name: (needs[0][name][1], (size,)) for name, size in sizes.items()}
