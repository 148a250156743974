"""What every request passes first: keys, sizes, ids, origins; and what the log says of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx2
import pytest

from runtime.serve.http.page import FILES
from runtime.serve.log import as_json, as_text, logger
from tests.helpers.virtual_time import run_virtually
from tests.runtime.serve.house import HI, JSON, House, in_house


def test_the_key_is_asked_for() -> None:
    async def work(house: House, client: httpx2.AsyncClient) -> None:
        async def status(path: str, key: str | None) -> int:
            headers = {} if key is None else {"authorization": key.encode("latin-1")}
            return (await client.get(path, headers=headers)).status_code

        for wrong in (None, "sesame", "Bearer", "Bearer ", "Bearer sesam", "Bearer sesame2",
                      "Basic sesame", "Bearer s\xe9same"):  # fmt: skip
            assert await status("/v1/models", wrong) == 401, wrong
        for right in ("Bearer sesame", "bearer sesame", "Bearer  sesame"):
            assert await status("/v1/models", right) == 200, right
        refused = await client.post("/v1/completions", json=HI)
        assert refused.json()["error"]["code"] == "invalid_api_key"
        assert house.engines.asked == []

    in_house(work, api_key="sesame")


@pytest.mark.parametrize("protects_metrics", [True, False])
def test_all_but_what_keeps_a_server_running_asks_for_the_key(protects_metrics: bool) -> None:
    """/stats told anybody of the texts' lengths and times."""

    async def work(house: House, client: httpx2.AsyncClient) -> None:
        found = {}
        for path in (*house.app.openapi()["paths"], *FILES, "/openapi.json", "/nothing"):
            found[path] = (await client.get(path)).status_code
        opened = {path for path, status in found.items() if status == 200}
        assert opened == {"/health", *FILES} | (set() if protects_metrics else {"/metrics"})
        assert set(found.values()) == {200, 401}
        assert {"/stats", "/version", "/v1/models", "/v1/chat/completions"} <= set(found)
        for path in ("/stats", "/metrics"):
            response = await client.get(path, headers={"authorization": "Bearer sesame"})
            assert response.status_code == 200

    in_house(work, api_key="sesame", protects_metrics=protects_metrics)


async def _parts(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 100):
        yield data[start : start + 100]


@pytest.mark.parametrize("has_length", [True, False])
def test_a_body_beyond_the_limit_is_refused_however_it_is_sent(has_length: bool) -> None:
    async def work(house: House, client: httpx2.AsyncClient) -> None:
        for num, status in ((1000, 200), (1001, 413)):
            body = json.dumps({"prompt": "x", "user": ""}).encode()
            body = body.replace(b'""', b'"' + b"u" * (num - len(body)) + b'"')
            assert len(body) == num
            content = body if has_length else _parts(body)
            response = await client.post("/v1/completions", content=content, headers=JSON)
            assert response.status_code == status
        assert response.json()["error"]["code"] == "body_too_long"
        assert "1000 bytes" in response.json()["error"]["message"]
        assert len(house.engines.asked) == 1

    in_house(work, max_body_bytes=1000)


def test_a_body_that_comes_a_byte_at_a_time_is_not_waited_for() -> None:
    async def trickle() -> AsyncIterator[bytes]:
        for _ in range(1000):
            yield b" "
            await asyncio.sleep(0.9)

    async def work() -> None:
        house = House(body_timeout_s=1.0)
        async with house.client() as client:
            response = await client.post("/v1/completions", content=trickle(), headers=JSON)
        assert response.status_code == 408
        assert response.json()["error"]["code"] == "body_timeout"
        assert asyncio.get_running_loop().time() == 1.0

    run_virtually(work())


def test_a_request_has_an_id_its_own_where_that_is_fit_to_print() -> None:
    async def work(house: House, client: httpx2.AsyncClient) -> None:
        for given, is_kept in (("abc-1", True), ("a b", False), ("x" * 200, False)):
            response = await client.get("/version", headers={"x-request-id": given})
            assert (response.headers["x-request-id"] == given) is is_kept
            assert house.lines[-1].request_id == response.headers["x-request-id"]

    in_house(work)


def test_other_origins_are_let_in_only_where_they_are_named() -> None:
    async def work(_house: House, client: httpx2.AsyncClient) -> bool:
        headers = {"origin": "http://page.example", "access-control-request-method": "POST"}
        response = await client.options("/v1/completions", headers=headers)
        return "access-control-allow-origin" in response.headers

    assert not in_house(work)
    assert not in_house(work, allowed_origins=("http://other.example",))
    named = ("http://page.example",)
    assert in_house(work, allowed_origins=named)
    assert in_house(work, allowed_origins=named, api_key="sesame"), "a browser asks without a key"


def test_a_page_of_another_origin_may_read_why_it_is_refused() -> None:
    async def work(_house: House, client: httpx2.AsyncClient) -> None:
        response = await client.get("/v1/models", headers={"origin": "http://page.example"})
        assert response.status_code == 401
        assert response.headers["access-control-allow-origin"] == "http://page.example"

    in_house(work, allowed_origins=("http://page.example",), api_key="sesame")


def test_no_page_loads_a_script_of_another_server() -> None:
    """FastAPI's own pages on the document do."""

    async def work(_house: House, client: httpx2.AsyncClient) -> None:
        assert (await client.get("/openapi.json")).status_code == 200
        for path in ("/docs", "/redoc"):
            assert (await client.get(path)).status_code == 404

    in_house(work)


def test_the_log_has_a_line_a_request_with_tokens_and_speeds() -> None:
    async def work(house: House, client: httpx2.AsyncClient) -> None:
        await client.post("/v1/completions", json={**HI, "max_tokens": 5})
        await client.post("/v1/completions", json={**HI, "stream": True, "max_tokens": 5})
        for line in house.lines:
            text = as_text(line)
            assert "POST /v1/completions 200" in text
            for part in ("2+5 tokens", "first after", "10.0 tokens/s", "1.25 a round", "length"):
                assert part in text
            record = json.loads(as_json(line))
            assert record["completion_tokens"] == 5
            assert record["request_id"] == line.request_id
        await client.post("/v1/completions", json={"prompt": "broken"})
        assert "on purpose" in as_text(house.lines[-1])

    in_house(work)


def test_the_log_is_one_line_whatever_a_client_sends_and_health_checks_do_not_fill_it() -> None:
    async def work(house: House, client: httpx2.AsyncClient) -> None:
        said: list[str] = []
        log = logger(said.append, is_json=False, is_quiet=False)
        for path in ("/health", "/metrics", "/no%0athing%1b[31m"):
            await client.get(path)
            log(house.lines[-1])
        [line] = said
        assert line.isprintable()
        logger(said.append, is_json=False, is_quiet=True)(house.lines[-1])
        assert len(said) == 1

    in_house(work)
