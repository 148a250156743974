"""Batch files on Ray Data: lines go to a pool of engine pairs, answers come as they are ready."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from engines.errors import BackendError, MissingDependencyError
from runtime.serve.batch.files import Answered, Asked
from runtime.serve.ray.cores import keep_to_a_share
from runtime.serve.ray.options import FleetOptions, resources_of
from runtime.serve.ray.reports import reason_of

NUM_BATCHES = 8
"""Of lines in one task of a worker: a task's answers are known when all of them are there."""


class Worker:
    """One engine pair of the pool. Lines and answers travel as JSON: no table reinterprets that."""

    def __init__(self, options: FleetOptions, num_cores: int | None) -> None:
        from runtime.async_llm import AsyncLLM
        from runtime.serve.batch.answering import Answering

        keep_to_a_share(num_cores)
        engines = AsyncLLM.open(options.bundle, **options.engine_options())
        self._answering = Answering(engines, model_name=options.serve_config().model_name)

    async def __call__(self, batch: dict[str, Sequence[str]]) -> AsyncIterator[dict[str, Any]]:
        """Several calls run at once, on one event loop: together they keep all places busy."""
        async for answered in self._answering.answers(
            [Asked(**json.loads(line)) for line in batch["line"]]
        ):
            yield {"answer": [json.dumps(asdict(answered))]}


def require_ray_data() -> None:
    """Raises MissingDependencyError unless the extra ``ray`` is installed."""
    import importlib.util

    for name in ("ray", "pyarrow", "pandas"):
        if importlib.util.find_spec(name) is None:
            raise MissingDependencyError("ray[data]", "ray", "a batch on many replicas")


def answers_on_ray(lines: Sequence[Asked], options: FleetOptions) -> Iterator[Answered]:
    """Every line once, in any order. Lines of a worker that dies are asked again: Ray Data's own
    doing. On the cluster that is connected (``runtime.serve.ray.cluster``). Raises BackendError
    where Ray Data gives up."""
    import ray.data

    resources, number = resources_of(options), options.most_replicas
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False  # the command has one
    context.print_on_execution_start = False
    context.execution_no_progress_timeout_s = -1  # a task of long texts takes its time
    logging.getLogger("ray.data").setLevel(logging.ERROR)  # its import has set it
    rows = [{"line": json.dumps(asdict(each))} for each in lines]
    per_task = NUM_BATCHES * resources.num_slots
    num_tasks = min(len(rows), max(number, -(-len(rows) // per_task)))
    answers = ray.data.from_items(rows, override_num_blocks=num_tasks).map_batches(
        Worker,
        fn_constructor_args=(options, resources.num_cores),
        batch_size=resources.num_slots,
        batch_format="numpy",
        compute=ray.data.ActorPoolStrategy(size=number),
        num_cpus=resources.num_cpus,
        num_gpus=resources.num_gpus,
    )
    rows_of = iter(answers.iter_rows())
    while True:
        try:
            row = next(rows_of)
        except StopIteration:
            return
        except Exception as error:  # Ray raises all kinds
            reason = reason_of([str(error)])
            raise BackendError(f"Ray Data gave up ({reason}); run the same command again") from None
        yield Answered(**json.loads(row["answer"]))
