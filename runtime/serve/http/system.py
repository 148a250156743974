"""Routes for whoever runs the server: health, metrics, what the last rounds did."""

from __future__ import annotations

import time
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

from fastapi import APIRouter, Query
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import JSONResponse, PlainTextResponse, Response

from runtime.serve.errors import model_not_found
from runtime.serve.http import responses
from runtime.serve.http.metrics import Metrics
from runtime.serve.http.streaming import as_json
from runtime.serve.rounds import NUM_KEPT
from runtime.serve.service import Service, device_names


def router_of(service: Service) -> APIRouter:
    router = APIRouter()
    metrics = Metrics(service)
    created = int(time.time())

    def card() -> responses.ModelCard:
        limits = service.model.limits
        return responses.ModelCard(
            id=service.config.model_name, created=created, max_model_len=limits.max_len
        )

    async def models() -> responses.ModelList:
        """The one model that is served."""
        return responses.ModelList(data=[card()])

    async def model(name: str) -> responses.ModelCard:
        """One model by its name."""
        if name != service.config.model_name:
            raise model_not_found(name, service.config.model_name)
        return card()

    async def health() -> Response:
        """Whether to send requests here."""
        engines, state = service.engines, service.state
        reason = str(engines.error) if engines.error is not None else service.model.note
        record = responses.Health(
            status=state,
            mode=service.mode_in_force,
            note=reason,
            running=engines.num_running,
            waiting=engines.num_waiting,
        )
        return JSONResponse(record.model_dump(), status_code=200 if state == "ready" else 503)

    async def read_metrics() -> Response:
        """In Prometheus' text format."""
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def stats(
        after: Annotated[int, Query(ge=0)] = 0,
        last: Annotated[int, Query(ge=1, le=NUM_KEPT)] = NUM_KEPT,
    ) -> Response:
        """Sums since the start, and the ``last`` rounds, those with a number above ``after``."""
        record = stats_of(service, after, last)
        return Response(as_json(record), media_type="application/json")

    async def read_version() -> responses.Version:
        return responses.Version(version=_version())

    errors: dict[int | str, dict[str, Any]] = {401: {"model": responses.Error}}
    router.add_api_route("/v1/models", models, methods=["GET"], tags=["OpenAI"], responses=errors)
    router.add_api_route(
        "/v1/models/{name:path}",
        model,
        methods=["GET"],
        tags=["OpenAI"],
        responses={**errors, 404: {"model": responses.Error}},
    )
    router.add_api_route(
        "/health",
        health,
        methods=["GET"],
        response_model=responses.Health,
        responses={503: {"model": responses.Health}},
    )
    router.add_api_route(
        "/metrics", read_metrics, methods=["GET"], response_class=PlainTextResponse
    )
    router.add_api_route(
        "/stats", stats, methods=["GET"], responses={400: {"model": responses.Error}}
    )
    router.add_api_route("/version", read_version, methods=["GET"])
    return router


def stats_of(service: Service, after: int, last: int) -> dict[str, object]:
    """What ``/stats`` says. ``now_s`` and the rounds' ``at_s`` are of one clock."""
    rounds, hits, model = service.rounds, service.hits, service.model
    settings = model.settings
    per_round = sum(rounds.rounds_by_mode.values()) or 1
    return {
        "model": service.config.model_name,
        "status": service.state,
        "mode": service.mode_in_force,
        "asked_mode": model.mode,
        "note": model.note,
        "why": service.why,
        "devices": device_names(model),
        "verify": settings.verify,
        "running": service.engines.num_running,
        "waiting": service.engines.num_waiting,
        "now_s": round(rounds.now_s, 6),
        "tokens_per_second": rounds.tokens_per_second(),
        "rounds_by_mode": dict(rounds.rounds_by_mode),
        "proposals": rounds.proposals,
        "num_emitted": rounds.num_emitted,
        "num_drafted": rounds.num_draft_tokens,
        "num_accepted": rounds.num_accepted,
        "accepted_at": rounds.accepted_at,
        "hit_rate_after_hit": hits.rate("hit"),
        "hit_rate_after_miss": hits.rate("miss"),
        "hidden_draft_ms_per_round": 1000 * rounds.hidden_s / per_round,
        "exposed_draft_ms_per_round": 1000 * rounds.exposed_s / per_round,
        "rounds": rounds.since(after, last),
    }


def _version() -> str:
    try:
        return version("ssd-trt")
    except PackageNotFoundError:  # run from a checkout
        return "unknown"
