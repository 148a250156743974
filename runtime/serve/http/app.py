"""The ASGI application: routes, errors, edge, and the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.middleware.cors import CORSMiddleware

from runtime.serve.http import page, system, texts
from runtime.serve.http.edge import Edge, Line
from runtime.serve.http.errors import add_handlers
from runtime.serve.service import Service


def create_app(service: Service, *, log: Callable[[Line], None]) -> FastAPI:
    """``log`` is told of every request when it has ended."""
    app = FastAPI(  # FastAPI's pages on the document load scripts of another server
        title="ssd-trt", docs_url=None, redoc_url=None, separate_input_output_schemas=False
    )
    app.include_router(texts.router_of(service))
    app.include_router(system.router_of(service))
    if service.config.has_page:
        app.include_router(page.router())
    add_handlers(app)
    app.add_middleware(Edge, config=service.config, log=log)
    if service.config.allowed_origins:  # outermost: a browser asks it without a key
        app.add_middleware(
            CORSMiddleware,
            allow_origins=service.config.allowed_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
        )
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]
    return app


def _document(app: FastAPI) -> dict[str, Any]:
    """FastAPI's own, without the 422 that it adds: wrong bodies get 400, as OpenAI's do."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version="1", routes=app.routes)
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        app.openapi_schema = document
    return app.openapi_schema
