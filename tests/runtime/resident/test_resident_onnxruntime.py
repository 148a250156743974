"""Resident rounds over real engines: what the host's plain decoding of the same bundle gives."""

from __future__ import annotations

from functools import cache

import pytest

from engines.manifest import TARGET
from runtime.backends.device_host import HostDeviceSession
from runtime.device.host import HostDevice
from runtime.loader import LoadedPair
from runtime.placement import Placement
from runtime.request import Request
from runtime.resident import Exchange, ResidentDraft, ResidentTarget
from runtime.round import draft_side, target_side
from runtime.sampling.params import SamplingParams
from runtime.scheduler import Scheduler
from runtime.spec.statistics import OutcomeStatistics
from tests.helpers.tiny_bundle import open_session, tiny_bundle

PROMPTS = ([3, 1, 4], [(7 * i) % 320 for i in range(90)], [9], [2, 7, 1, 8], [5] * 20)
LAWS = (
    SamplingParams(),
    SamplingParams(temperature=1.0, seed=7),
    SamplingParams(temperature=0.8, seed=9, top_k=40, top_p=0.9),
    SamplingParams(temperature=1.0, seed=3, min_p=0.02),
    SamplingParams(),
)


def requests() -> list[Request]:
    return [
        Request(prompt, params, 40, frozenset({5}), 160, min_tokens=12, num_logprobs=2)
        for prompt, params in zip(PROMPTS, LAWS, strict=True)
    ]


@cache
def plain() -> list[Request]:
    placement, options = Placement("ar", (0,), (0,)), {"num_draft": 4, "num_branches": 6}
    pair = LoadedPair(tiny_bundle(), placement, verify="coupled", device=HostDevice(), **options)
    made = requests()
    for each in made:
        pair.scheduler.run([each])
    pair.close()
    return made


@pytest.mark.parametrize("mode", ["ar", "sd", "ssd"])
def test_the_hosts_plain_decoding_is_met(work, mode: str) -> None:
    """In a batch of three, with joins, leaves and moves; the draft has a reduced vocabulary."""
    bundle, device = tiny_bundle(), HostDevice(check=True)
    num_draft, num_branches, size = 4, 6, 3
    target = HostDeviceSession(open_session(bundle, device))
    manifest = target.manifest
    assert manifest.role == TARGET
    mailbox = Exchange(device, None, size, num_draft, vocab_size=manifest.model.output_vocab)
    worker = ResidentTarget(target, device, work, mailbox)
    near, far = target_side(device.create_stream("target"), worker), None
    if mode != "ar":
        draft = ResidentDraft(
            HostDeviceSession(open_session(bundle, device, "draft")),
            device,
            work,
            mailbox,
            num_draft=num_draft,
            num_branches=num_branches,
            statistics=OutcomeStatistics(num_draft, num_branches),
        )
        stream = device.create_stream("draft")
        stream.launch(draft.load)
        far = draft_side(stream, draft)
    made = requests()
    Scheduler(device, mode, near, far, max_batch=size).run(made)
    device.close()
    for found, expected in zip(made, plain(), strict=True):
        assert found.generated == expected.generated
        assert found.finish_reason is expected.finish_reason
        assert found.logprobs == expected.logprobs
