"""The seam between the rounds and the verification rules: `Rule`, and `rule(name)`.

A rule works on both sides of a pair. The draft side asks it for drafted tokens and for the
likely bonus tokens to prepare branches for; the target side hands it the logits of a block
and gets the outcome. Rules hold no state of a sequence, may be called from several threads,
and never change their inputs.

Draft logits may have a reduced vocabulary. `ids_map` int [Vd] then gives the target id of each
draft id (no id twice); None means the ids are the same. All ids passed in or out are target ids.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from engines.errors import UsageError
from runtime.sampling import coupled, ratio
from runtime.sampling.logits import adjusted
from runtime.sampling.noise import NoiseCache, Purpose, uniform
from runtime.sampling.params import SamplingParams
from runtime.sampling.proposal import MAX_SUPPORT, Proposal, SparseLaw, Verdict
from runtime.sampling.text_law import TextLaw

FloatArray = npt.NDArray[np.float32]
IdsMap = npt.NDArray[np.integer]


class Rule(Protocol):
    """How drafted tokens are made and judged so that the output keeps the target's law."""

    @property
    def name(self) -> str:
        """The name `rule` knows it by."""
        ...

    def verify(
        self,
        logits: FloatArray,
        proposal: Proposal,
        params: SamplingParams,
        first_position: int,
        text: TextLaw | None = None,
    ) -> Verdict:
        """Judge a block: target logits float32 [R, V], R > len(proposal.tokens) -> outcome.

        Row i is the target's output for `first_position + i`, the place of the i-th drafted
        token; the row after the last one yields the bonus token when all are accepted. Plain
        decoding is this call with `Nothing()`. `text`, where `params.follows_text`, stands before
        row 0; it is moved behind the tokens of the verdict. Raises UsageError on missing rows or a
        proposal the rule cannot judge, BackendError on logits that are no law (NaN, all -inf).
        """
        ...

    def draft_token(
        self,
        logits: FloatArray,
        params: SamplingParams,
        position: int,
        ids_map: IdsMap | None = None,
        *,
        num_prepared: int = 0,
    ) -> tuple[int, SparseLaw | None]:
        """Draft the token of `position` from draft logits float32 [Vd].

        `num_prepared` is how many candidates branches will be prepared for at this place, should
        the token be rejected there. Returns the token with the law it was drawn from, None if the
        rule does not need one.
        """
        ...

    def bonus_candidates(
        self,
        logits: FloatArray,
        params: SamplingParams,
        position: int,
        num: int,
        exclude: int | None = None,
        ids_map: IdsMap | None = None,
    ) -> npt.NDArray[np.int32]:
        """Likely bonus tokens at `position` from draft logits [Vd], likeliest first.

        Returns int32 [num], or fewer if the vocabulary is smaller. `exclude` is the token
        drafted at this position: where it is rejected, it is not the bonus token.
        """
        ...


@dataclass(frozen=True, slots=True)
class CoupledRule:
    """The default: the target's tokens, the same in every mode (see `coupled`).

    Draft and target side profit from one `noise` cache. Give it a capacity of 2K + 2 positions
    a sequence, and the target's vocabulary size.
    """

    noise: NoiseCache = field(default_factory=NoiseCache)

    @property
    def name(self) -> str:
        """See `Rule`."""
        return "coupled"

    def verify(
        self,
        logits: FloatArray,
        proposal: Proposal,
        params: SamplingParams,
        first_position: int,
        text: TextLaw | None = None,
    ) -> Verdict:
        """See `Rule`."""
        noise_at = self.noise.for_seed(params.seed, logits.shape[-1])
        return coupled.verify(logits, proposal.tokens, params, noise_at, first_position, text)

    def draft_token(
        self,
        logits: FloatArray,
        params: SamplingParams,
        position: int,
        ids_map: IdsMap | None = None,
        *,
        num_prepared: int = 0,  # noqa: ARG002 - the target's token does not hang on the draft's law
    ) -> tuple[int, SparseLaw | None]:
        """See `Rule`."""
        noise = self._noise(logits, params, position, ids_map)
        logits = adjusted(logits, params, position, ids_map)
        token = coupled.choose(logits, params, noise)
        return (token if ids_map is None else int(ids_map[token])), None

    def bonus_candidates(
        self,
        logits: FloatArray,
        params: SamplingParams,
        position: int,
        num: int,
        exclude: int | None = None,
        ids_map: IdsMap | None = None,
    ) -> npt.NDArray[np.int32]:
        """See `Rule`."""
        noise = self._noise(logits, params, position, ids_map)
        logits = adjusted(logits, params, position, ids_map)
        return _candidates(logits, params, noise, num, exclude, ids_map)

    def _noise(
        self, logits: FloatArray, params: SamplingParams, position: int, ids_map: IdsMap | None
    ) -> FloatArray | None:
        """The noise of the draft's ids, float32 [Vd]: that of the target ids they stand for."""
        if params.is_greedy:
            return None
        if ids_map is None:
            return self.noise.at(params.seed, position, logits.size)
        return self.noise.at(params.seed, position, int(ids_map.max()) + 1).take(ids_map)


@dataclass(frozen=True, slots=True)
class RatioRule:
    """The classical rejection rule: exact in law, tokens depend on the drafts (see `ratio`).

    With Saguaro the law is exact over texts of different seeds: what one text shows moves the
    fan-out, which shapes q for the others, and those of its own seed draw with its uniforms.

    `saguaro` is C of Saguaro sampling, from 0 to 1; 1 leaves the draft's law as it is.
    """

    max_support: int = MAX_SUPPORT
    saguaro: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.saguaro <= 1:
            raise UsageError(f"saguaro is {self.saguaro}, expected a number from 0 to 1 (off)")

    @property
    def name(self) -> str:
        """See `Rule`."""
        return "ratio"

    def verify(
        self,
        logits: FloatArray,
        proposal: Proposal,
        params: SamplingParams,
        first_position: int,
        text: TextLaw | None = None,
    ) -> Verdict:
        """See `Rule`."""
        return ratio.verify(logits, proposal, params, first_position, text=text)

    def draft_token(
        self,
        logits: FloatArray,
        params: SamplingParams,
        position: int,
        ids_map: IdsMap | None = None,
        *,
        num_prepared: int = 0,
    ) -> tuple[int, SparseLaw | None]:
        """See `Rule`."""
        logits = adjusted(logits, params, position, ids_map)
        q = ratio.draft_law(logits, params, ids_map, self.max_support)
        if self.saguaro < 1 and num_prepared > 0:
            q = ratio.saguaro(q, num_prepared, self.saguaro)
        return ratio.draw(q, uniform(params.seed, position, Purpose.DRAFT)), q

    def bonus_candidates(
        self,
        logits: FloatArray,
        params: SamplingParams,
        position: int,
        num: int,
        exclude: int | None = None,
        ids_map: IdsMap | None = None,
    ) -> npt.NDArray[np.int32]:
        """See `Rule`. The bonus token's draw is not shared with the draft: plain logits rank."""
        logits = adjusted(logits, params, position, ids_map)
        return _candidates(logits, params, None, num, exclude, ids_map)


def rule(name: str, noise: NoiseCache | None = None, *, saguaro: float = 1.0) -> Rule:
    """The rule of that name, "coupled" or "ratio"; raises UsageError for another.

    `noise` is the cache the coupled rule uses; without it the rule makes its own. `saguaro` is
    the ratio rule's C; the coupled rule, whose tokens no draft law moves, has none.
    """
    if name == "coupled":
        if saguaro != 1:
            raise UsageError(f"saguaro {saguaro} belongs to the ratio rule: --verify ratio")
        return CoupledRule(NoiseCache() if noise is None else noise)
    if name == "ratio":
        return RatioRule(saguaro=saguaro)
    raise UsageError(f"unknown verification rule {name!r}; --verify takes coupled or ratio")


def _candidates(
    logits: FloatArray,
    params: SamplingParams,
    noise: FloatArray | None,
    num: int,
    exclude: int | None,
    ids_map: IdsMap | None,
) -> npt.NDArray[np.int32]:
    """`coupled.candidates` in target ids."""
    if ids_map is None:
        return coupled.candidates(logits, params, noise, num, exclude)
    # `exclude` may have no draft id, so it is dropped after the mapping.
    ids = ids_map[coupled.candidates(logits, params, noise, num + 1)].astype(np.int32)
    return ids[ids != exclude][:num] if exclude is not None else ids[:num]
