"""The ASGI application: routes, errors, edge, and the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.middleware.cors import CORSMiddleware

from runtime.serve.http import page, system, texts
from runtime.serve.http.edge import API, Edge, Line
from runtime.serve.http.errors import add_handlers
from runtime.serve.service import Service


def create_app(service: Service, *, log: Callable[[Line], None]) -> FastAPI:
    """``log`` is told of every request when it has ended."""
    app = _App(  # FastAPI's pages on the document load scripts of another server
        title="ssd-trt", docs_url=None, redoc_url=None, separate_input_output_schemas=False
    )
    app.include_router(texts.router_of(service))
    app.include_router(system.router_of(service))
    if service.config.has_page:
        app.include_router(page.router())
    add_handlers(app)

    def ended(line: Line) -> None:
        if line.path.startswith(API):
            service.responses[line.status] += 1
        log(line)

    app.add_middleware(Edge, config=service.config, log=ended)
    if service.config.allowed_origins:  # outermost: a browser asks it without a key
        app.add_middleware(
            CORSMiddleware,
            allow_origins=service.config.allowed_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
        )
    return app


class _App(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """FastAPI's own, without the 422 that it adds: wrong bodies get 400, as OpenAI's do."""
        if self.openapi_schema is None:
            document = get_openapi(title=self.title, version="1", routes=self.routes)
            for path in document["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)
            self.openapi_schema = document
        return self.openapi_schema
