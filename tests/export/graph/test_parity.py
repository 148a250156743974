"""The built graph against transformers, on tiny random models, with past and several rows."""

from __future__ import annotations

import numpy as np
import pytest

from export.check.reference import load_reference
from export.checkpoint.api import open_checkpoint
from runtime.backends.api import CallShape
from runtime.device.host import HostDevice
from runtime.kv.layout import SlotLayout
from runtime.workers.calls import fill_trunk
from runtime.workers.prefill import prefill
from tests.helpers.tiny_bundle import open_session, tiny_bundle

NEW = 5


@pytest.mark.torch
@pytest.mark.parametrize(("batch", "length"), [(1, 7), (2, 33), (3, 110)])
@pytest.mark.parametrize(
    ("family", "tied", "scaled_rope"),
    [
        ("llama", True, False),
        ("llama", False, True),
        ("qwen3", True, False),
        ("qwen3", False, False),
    ],
)
def test_logits_match_transformers(family, tied, scaled_rope, batch, length):
    bundle = tiny_bundle(family=family, tied=tied, scaled_rope=scaled_rope)
    reference = load_reference(open_checkpoint(bundle.path.parent / "target"))
    random = np.random.default_rng(length)
    vocab = bundle.target.model.vocab_size
    texts = random.integers(0, vocab, (batch, length)).tolist()
    device = HostDevice()
    try:
        session = open_session(bundle, device)
        layout = SlotLayout(bundle.target.kv, 0)
        for slot, tokens in enumerate(texts):
            prefill(session, layout, slot, tokens[:-NEW])
        session.bind_rows(layout.rows_for(length))
        step = session.prepare(CallShape(0, batch, NEW, NEW))
        for slot, tokens in enumerate(texts):
            fill_trunk(step, slot, layout, length - NEW, tokens[-NEW:])
            step.logit_rows[slot] = range(NEW)
            step.num_draft[slot] = 0
        step.run()
        expected = np.stack([reference.logits(tokens)[-NEW:] for tokens in texts])
        assert np.abs(step.logits - expected).max() < 1e-4
        # Guards the tolerance: the logits are not tiny themselves.
        assert np.abs(expected).max() > 1.0
    finally:
        device.close()
