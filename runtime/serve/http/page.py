"""The page at ``/``: files of ``runtime/serve/page``, which talk to this server alone."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from starlette.responses import Response

FOLDER = Path(__file__).parents[1] / "page"
FILES = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/chat.js": ("chat.js", "text/javascript"),
    "/timeline.js": ("timeline.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""By address. Types are said here: what a machine takes ``.js`` for is its own affair."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def router() -> APIRouter:
    """A route a file, so that all other addresses stay unknown (404) whatever the method."""
    routes = APIRouter()
    for address, (name, media_type) in FILES.items():
        _add(routes, address, (FOLDER / name).read_bytes(), media_type)
    return routes


def _add(routes: APIRouter, address: str, content: bytes, media_type: str) -> None:
    async def file() -> Response:
        return Response(content, headers=HEADERS, media_type=media_type)

    routes.add_api_route(address, file, methods=["GET", "HEAD"], include_in_schema=False)
