"""``/metrics``: what vLLM's dashboards read, under its names; what only SSD has, as ``ssd:``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, runtime_checkable

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from runtime.serve.generation import Generation
from runtime.serve.service import Service, device_names
from runtime.spec.plan import MODES

FAST_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
SLOW_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
LABEL = "model_name"


@runtime_checkable
class Predicts(Protocol):
    """A policy that knows what speculation would yield (``runtime.spec.controller``)."""

    @property
    def speedups(self) -> dict[str, float]: ...


class Metrics:
    """A registry of its own for one service; counts are read where they are kept."""

    def __init__(self, service: Service) -> None:
        self.registry = CollectorRegistry()
        self._service = service
        self._name = service.config.model_name
        self._first = self._histogram(
            "vllm:time_to_first_token_seconds",
            "From a request's arrival to its first token",
            FAST_S,
        )
        self._between = self._histogram(
            "vllm:inter_token_latency_seconds",
            "Between two arrivals of tokens of a choice; those of one round arrive at once",
            FAST_S,
        )
        self._whole = self._histogram(
            "vllm:e2e_request_latency_seconds", "From a request's arrival to its end", SLOW_S
        )
        ProcessCollector(registry=self.registry)
        self.registry.register(self)
        service.listeners.append(self.observe)

    def observe(self, generation: Generation) -> None:
        """A request has ended."""
        timing = generation.timing
        if timing.first_s is not None:
            self._first.labels(self._name).observe(timing.first_s)
        for interval_s in timing.intervals_s:
            self._between.labels(self._name).observe(interval_s)
        self._whole.labels(self._name).observe(timing.total_s)

    def collect(self) -> Iterator[Metric]:
        """Called by the registry at each scrape."""
        yield from self._of_requests()
        yield from self._of_drafts()
        yield from self._of_rounds()

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry would count everything once more to know its names."""
        return ()

    def _of_requests(self) -> Iterator[Metric]:
        service, engines = self._service, self._service.engines
        gauge, counter = self._gauge, self._counter
        yield gauge("vllm:num_requests_running", "Choices being decoded", engines.num_running)
        yield gauge("vllm:num_requests_waiting", "Choices that wait", engines.num_waiting)
        yield counter("vllm:prompt_tokens", "Tokens of prompts read", service.num_prompt_tokens)
        yield counter(
            "vllm:generation_tokens", "Tokens of texts that ended", service.num_generated_tokens
        )
        yield counter(
            "vllm:prefix_cache_queries", "Tokens of prompts looked up", service.num_prompt_tokens
        )
        yield counter(
            "vllm:prefix_cache_hits", "Tokens of prompts found", service.num_cached_tokens
        )
        endings = CounterMetricFamily(
            "vllm:request_success", "Choices by how they ended", labels=[LABEL, "finished_reason"]
        )
        for reason, num in sorted(service.endings.items()):
            endings.add_metric([self._name, reason], num)
        yield endings
        yield self._labelled(
            CounterMetricFamily,
            "ssd:responses",
            "Answers of /v1 by HTTP status; 0: the client went away before",
            "status",
            {str(status): float(num) for status, num in sorted(service.responses.items())},
        )
        yield gauge("ssd:queue_capacity", "Choices that may be inside", service.gate.capacity)
        yield gauge("ssd:ready", "1 while requests are taken", float(service.state == "ready"))

    def _of_drafts(self) -> Iterator[Metric]:
        rounds, prefix = self._service.rounds, "vllm:spec_decode_num_"
        for name, help_text, value in (
            ("drafts", "Proposals that were verified", rounds.num_drafts),
            ("draft_tokens", "Drafted tokens that were verified", rounds.num_draft_tokens),
            ("accepted_tokens", "Drafted tokens that became text", rounds.num_accepted),
        ):
            yield self._counter(prefix + name, help_text, value)
        places = CounterMetricFamily(
            prefix + "accepted_tokens_per_pos",
            "Proposals whose token at this place became text",
            labels=[LABEL, "position"],
        )
        for place, num in enumerate(rounds.accepted_at or [0]):
            places.add_metric([self._name, str(place)], num)
        yield places
        yield self._counter(
            "ssd:discarded_tokens", "Tokens accepted behind the end of a text", rounds.num_discarded
        )

    def _of_rounds(self) -> Iterator[Metric]:
        service, rounds, hits = self._service, self._service.rounds, self._service.hits
        mode = service.mode_in_force
        yield self._labelled(
            GaugeMetricFamily,
            "ssd:mode",
            "1 for how the last round was decoded",
            "mode",
            {each: float(each == mode) for each in MODES},
        )
        yield self._gauge("ssd:spec_enabled", "1 while drafts are used", float(mode != "ar"))
        is_lost = float(service.model.has_lost_draft)
        yield self._gauge("ssd:draft_lost", "1 once the draft failed and was given up", is_lost)
        policy = service.model.settings.policy
        yield self._labelled(
            GaugeMetricFamily,
            "ssd:predicted_speedup",
            "In mode auto: predicted speed in plain decoding's, by who would draft",
            "drafter",
            policy.speedups if isinstance(policy, Predicts) else {},
        )
        yield self._labelled(
            CounterMetricFamily,
            "ssd:rounds",
            "Rounds by mode",
            "mode",
            {each: float(rounds.rounds_by_mode[each]) for each in MODES},
        )
        yield self._labelled(
            CounterMetricFamily,
            "ssd:proposals",
            "Rows of rounds by where their drafts came from",
            "source",
            {source: float(num) for source, num in rounds.proposals.items()},
        )
        states = ("hit", "miss")
        yield self._labelled(
            CounterMetricFamily,
            "ssd:hits",
            "Outcomes that had been prepared, by how the round before began; of texts that ended",
            "previous",
            {each: getattr(hits, f"num_hits_after_{each}") for each in states},
        )
        yield self._labelled(
            CounterMetricFamily,
            "ssd:outcomes",
            "Outcomes looked up, by how the round before began; of texts that ended",
            "previous",
            {each: getattr(hits, f"num_rounds_after_{each}") for each in states},
        )
        rates = {each: rate for each in states if (rate := hits.rate(each)) is not None}
        yield self._labelled(
            GaugeMetricFamily, "ssd:hit_rate", "ssd:hits / ssd:outcomes", "previous", rates
        )
        yield self._labelled(
            CounterMetricFamily,
            "ssd:draft_seconds",
            "Seconds the draft worked: hidden behind the target, or exposed (it waited)",
            "state",
            {"hidden": rounds.hidden_s, "exposed": rounds.exposed_s},
        )
        yield self._counter("ssd:verify_seconds", "Seconds the target verified", rounds.verify_s)
        speed, devices = rounds.tokens_per_second(), device_names(service.model)
        yield self._gauge("ssd:tokens_per_second", "Tokens a second, of the last 10 s", speed)
        yield self._labelled(
            GaugeMetricFamily,
            "ssd:tokens_per_second_per_device",
            "ssd:tokens_per_second / number of devices",
            "device",
            {each: speed / len(devices) for each in devices},
        )

    def _histogram(self, name: str, help_text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, help_text, [LABEL], buckets=buckets, registry=self.registry)

    def _gauge(self, name: str, help_text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, help_text, labels=[LABEL])
        family.add_metric([self._name], value)
        return family

    def _counter(self, name: str, help_text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, help_text, labels=[LABEL])
        family.add_metric([self._name], value)
        return family

    def _labelled(
        self,
        kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
        name: str,
        help_text: str,
        label: str,
        values: dict[str, float],
    ) -> Metric:
        family = kind(name, help_text, labels=[LABEL, label])
        for each, value in values.items():
            family.add_metric([self._name, each], value)
        return family
