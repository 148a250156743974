"""What Ray Serve takes in of a fleet, and a replica's own part. Without a cluster."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from engines.errors import BackendError
from runtime.async_llm import AsyncLLM
from runtime.completion import Completion, Delta
from runtime.llm import LLM
from runtime.sampling.params import SamplingParams
from runtime.serve.ray.fleet import FleetModel
from runtime.serve.ray.messages import Begun, Ended, Failed
from runtime.serve.ray.replica import EngineReplica
from runtime.serve.rounds import RoundLog
from tests.helpers.tiny_bundle import tiny_bundle

BUILD = """
import asyncio, json, sys
from types import SimpleNamespace
from ray.exceptions import ActorDiedError, OutOfMemoryError
from runtime.serve.ray import app_of
from runtime.serve.ray.ingress import is_loss
application = app_of(json.loads(sys.argv[1]))
ingress = application._bound_deployment
[replicas] = [each for each in ingress.init_args if hasattr(each, "_bound_deployment")]
told = replicas._bound_deployment
Router = told._deployment_config.request_router_config.get_request_router_class()
candidates = [SimpleNamespace(replica_id=SimpleNamespace(unique_id=each)) for each in "abc"]

def ranks(*avoid):
    asking = SimpleNamespace(kwargs={"avoid": avoid}, routing_context=SimpleNamespace())
    chosen = asyncio.run(Router.choose_replicas(Router.__new__(Router), candidates, asking))
    return ["".join(each.replica_id.unique_id for each in rank) for rank in chosen]

print(json.dumps({
    "names": [ingress.name, told.name],
    "scaling": told._deployment_config.autoscaling_config.model_dump(mode="json"),
    "router": Router.__name__,
    "ranks": [ranks("b"), ranks("a", "b", "c")],
    "max_ongoing": told._deployment_config.max_ongoing_requests,
    "options": told.ray_actor_options,
    "losses": [is_loss(each) for each in (ActorDiedError(), OutOfMemoryError(""), ValueError())],
}))
"""


@pytest.mark.ray
def test_ray_serve_takes_scaling_routing_and_resources_of_a_config() -> None:
    """In a process of its own: Ray warns of its own future when it is imported."""
    args = {"bundle": str(tiny_bundle().path), "min_replicas": 1, "max_replicas": 3}
    args |= {"upscale_delay_s": 2.5, "cpus_per_replica": 1}
    command = [sys.executable, "-c", BUILD, json.dumps(args)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["names"] == ["Ingress", "Engines"]
    scaling = found["scaling"]
    assert (scaling["min_replicas"], scaling["max_replicas"]) == (1, 3)
    assert (scaling["upscale_delay_s"], scaling["target_ongoing_requests"]) == (2.5, 3)
    assert found["router"] == "StickyRouter"
    assert found["ranks"] == [["a", "c"], ["abc"]], "a request goes back to what it failed on"
    assert found["max_ongoing"] == 4
    assert found["losses"] == [True, True, False], "Ray ends a replica that takes too much memory"
    assert found["options"] == {"num_cpus": 1.0, "num_gpus": 0.0}


def replica_of(engines: Any) -> EngineReplica:
    """Made as Ray Serve makes it, but for the place it would ask Ray for."""
    replica = EngineReplica.__new__(EngineReplica)
    replica._name, replica._rounds, replica.engines = "r1", RoundLog(num_draft=0), engines
    return replica


async def answer(replica: EngineReplica, prompt: Any, **options: Any) -> list[Any]:
    law = SamplingParams(1, seed=3)
    return [each async for each in replica.generate(prompt, law, options)]


def test_a_replica_sends_a_text_as_it_comes_and_then_all_of_it() -> None:
    async def run() -> None:
        async with AsyncLLM(LLM.open(tiny_bundle().path, mode="sd")) as engines:
            replica = replica_of(engines)
            begun, *deltas, ended = await answer(replica, [5, 6], max_tokens=9, logprobs=1)
            assert begun == Begun("r1")
            assert isinstance(ended, Ended)
            completion: Completion = ended.completion
            assert all(isinstance(each, Delta) for each in deltas)
            assert "".join(each.text for each in deltas) == completion.text
            assert len(completion.token_ids) == 9
            _, failed = await answer(replica, [10**6])
            assert isinstance(failed, Failed)
            assert failed.kind in ("UsageError", "CapacityError")
            described = await replica.describe()
            model = FleetModel(tiny_bundle().path, described)
            assert model.encode("a river") == engines.llm.encode("a river")
            assert (model.mode, model.limits) == (engines.llm.mode, engines.llm.limits)

    asyncio.run(run())


def test_a_caller_that_is_gone_ends_the_text() -> None:
    async def run() -> None:
        async with AsyncLLM(LLM.open(tiny_bundle().path, mode="ar")) as engines:
            options: Any = {"max_tokens": 140, "ignore_eos": True}
            messages = replica_of(engines).generate([5, 6], SamplingParams(), options)
            assert isinstance(await anext(messages), Begun)
            await anext(messages)
            assert engines.num_running == 1
            await messages.aclose()
            while engines.num_running:
                await asyncio.sleep(0)

    asyncio.run(run())


def test_a_replica_whose_engines_failed_is_not_healthy() -> None:
    replica_of(SimpleNamespace(error=None, close=lambda: None)).check_health()
    ill = replica_of(SimpleNamespace(error=BackendError("the target failed"), close=lambda: None))
    with pytest.raises(RuntimeError, match="the target failed"):
        ill.check_health()
