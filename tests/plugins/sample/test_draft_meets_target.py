"""Drafting and verification share noise and cuts to the bit: the target as draft is right."""

from __future__ import annotations

import numpy as np
import pytest

from plugins.law.reference import Sampling
from plugins.sample import kernel
from plugins.sample.args import Batch
from plugins.verify import args as verify_args
from plugins.verify import kernel as verify_kernel
from tests.helpers.drafting import DTYPES, launch, random_grid
from tests.helpers.sampling_cases import random_logits, random_params
from tests.helpers.sampling_kernels import Block, Grid, judge


@pytest.fixture(scope="module")
def drafting(load_host):
    return load_host(kernel.KERNEL.source, kernel.KERNEL.args)


@pytest.fixture(scope="module")
def verification(load_host):
    return load_host(verify_kernel.KERNEL.source, verify_kernel.KERNEL.args)


def random_batch(rng: np.random.Generator) -> Batch:
    """Neither damaged nor edited: the target counts drafts as generated, the draft does not."""
    sequences, places = int(rng.integers(1, 4)), int(rng.integers(2, 6))
    shape = (sequences, places, int(rng.choice([3, 40, 900])))
    first = rng.integers(0, 2**40, sequences)
    return Batch(
        logits=random_logits(rng, shape, str(rng.choice(DTYPES))),
        samplings=[
            Sampling(random_params(rng), int(rng.integers(0, 2**63)), int(position))
            for position in first
        ],
        positions=first[:, None] + np.arange(places),
        num_candidates=1,
    )


def test_a_draft_that_is_the_target_is_accepted_whole(drafting, verification) -> None:
    """S17: any other noise, temperature or cut on one side would reject some of these tokens."""
    for index in range(300):
        rng = np.random.default_rng([index, 8])
        batch = random_batch(rng)
        sequences, places, _ = batch.logits.shape
        found = launch(drafting, batch, random_grid(rng))
        is_law = (found["status"] == 0).reshape(sequences, places).all(1)
        tokens = found["sample"].reshape(sequences, places)
        block = Block(batch.logits, batch.samplings, drafts=tokens[:, :-1].copy())
        outcome = judge(verification, verify_args.COUPLED, block, Grid(int(rng.integers(1, 4))))
        assert (outcome.accepted == places - 1)[is_law].all(), f"batch {index}"
        assert (outcome.next == tokens[:, -1])[is_law].all()
        assert is_law.any() or not np.isfinite(batch.logits.astype(float)).any(-1).all()


def test_a_reduced_draft_takes_the_targets_token_where_it_has_it(drafting, verification) -> None:
    """The noise goes by target ids. Ids that the draft lacks are forbidden to the target."""
    for index in range(100):
        rng = np.random.default_rng([index, 9])
        batch = random_batch(rng)
        sequences, places, size = batch.logits.shape
        ids_map = rng.permutation(3 * size)[:size].astype(np.int32)
        forbidden = 0xFF80 if batch.logits.dtype == np.uint16 else -np.inf
        target = np.full((sequences, places, 3 * size), forbidden, batch.logits.dtype)
        target[..., np.sort(ids_map)] = batch.logits
        # Equal logits rank by draft id on the draft's side, so the map ascends here.
        reduced = Batch(
            batch.logits,
            batch.samplings,
            batch.positions,
            num_candidates=1,
            ids_map=np.sort(ids_map),
        )
        found = launch(drafting, reduced)
        is_law = (found["status"] == 0).reshape(sequences, places).all(1)
        tokens = found["sample"].reshape(sequences, places)
        block = Block(target, batch.samplings, drafts=tokens[:, :-1].copy())
        outcome = judge(verification, verify_args.COUPLED, block, Grid())
        assert (outcome.accepted == places - 1)[is_law].all(), f"batch {index}"
        assert (outcome.next == tokens[:, -1])[is_law].all()
