"""What every backend's session does after a call that failed, and what the probe must notice."""

from __future__ import annotations

import numpy as np
import pytest

from engines.errors import BackendError
from engines.manifest import TARGET, Limits
from runtime.backends.api import CallShape, Session
from runtime.backends.toy import ToySession
from runtime.device.host import HostDevice
from runtime.workers.probe import probe_invariance
from tests.helpers.tiny_bundle import open_session, tiny_bundle
from tests.helpers.toy_pair import tables


@pytest.fixture(params=["toy", "onnxruntime"])
def session(request):
    device = HostDevice()
    if request.param == "toy":
        yield ToySession(TARGET, tables(1)[0], Limits(160, 3, 4, 6), device)
    else:
        yield open_session(tiny_bundle(), device)
    device.close()


def test_a_failed_call_leaves_zeroed_caches(session: Session) -> None:
    """A NaN in a masked row poisons every later output: 0 times NaN is NaN."""
    session.kv_buffer.array[:] = np.nan
    step = session.prepare(CallShape(0, 1, 2, 2))
    step.tokens[0] = 0
    step.positions[0] = range(2)
    step.mask[0] = True
    step.logit_rows[0] = range(2)
    step.num_draft[0] = 0
    step.write_at[0] = step.mask.shape[-1] - 1  # reaches past the last bound row
    with pytest.raises(BackendError):
        step.run()
    assert not session.kv_buffer.array.any()


def test_the_probe_refuses_an_engine_that_rounds_by_the_bound_rows(session: Session) -> None:
    """Speculation binds its rows in other buckets than plain decoding of the same text."""
    with pytest.raises(BackendError, match="more cache rows"):
        probe_invariance(_RoundsByRows(session), 5)


def test_the_probe_leaves_the_smallest_bucket_bound(session: Session) -> None:
    probe_invariance(session, 5)
    step = session.prepare(CallShape(0, 1, 1, 1))
    assert step.mask.shape[-1] == session.manifest.lengths[0]


class _RoundsByRows:
    """A session whose logits move a little with the number of bound rows."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __getattr__(self, name):
        return getattr(self._session, name)

    def prepare(self, shape):
        step = self._session.prepare(shape)
        run = type(step).run

        class Off:
            def __getattr__(self, name):
                return getattr(step, name)

            def run(self):
                run(step)
                step.logits[:] += np.float32(1e-3 * step.mask.shape[-1])

        return Off()
