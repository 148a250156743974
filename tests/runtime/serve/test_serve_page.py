"""The page's files and the data it lives on, without a browser."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest

from runtime.serve.http.page import FILES, FOLDER
from runtime.serve.rounds import NUM_KEPT
from runtime.spec.fallback import ProposalKind
from runtime.spec.plan import RoundPlan, RoundReport, RowReport
from tests.runtime.serve.house import House, in_house

ROOT = Path(__file__).parents[3]
ROW = RowReport(0, ProposalKind.HIT, 2, 1, True, 2, rank=3)


def report(number: int) -> RoundReport:
    return RoundReport(number, (ROW,), RoundPlan("ssd", 2, 4), seconds=0.01, verify_s=0.008)


def test_each_file_has_its_type_and_a_policy_that_lets_nothing_else_in() -> None:
    async def work(_house: House, client: httpx2.AsyncClient) -> None:
        for address, (name, media_type) in FILES.items():
            response = await client.get(address)
            assert response.content == (FOLDER / name).read_bytes()
            assert response.headers["content-type"].split(";")[0] == media_type
            assert response.headers["x-content-type-options"] == "nosniff"
            policy = response.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self';")
            assert "unsafe" not in policy
            assert "*" not in policy

    in_house(work)


def test_the_page_needs_no_key_and_shadows_no_other_address() -> None:
    """A mount at / made 405 of what is unknown, and the clients' "no such endpoint" of nothing."""

    async def work(_house: House, client: httpx2.AsyncClient) -> None:
        for address in FILES:
            assert (await client.get(address)).status_code == 200
        key = {"authorization": "Bearer sesame"}
        for address in ("/nothing", "/../config.py"):
            assert (await client.get(address, headers=key)).status_code == 404
        assert (await client.post("/embeddings", json={}, headers=key)).status_code == 404

    in_house(work, api_key="sesame")


def test_without_the_page_its_addresses_are_unknown() -> None:
    async def work(_house: House, client: httpx2.AsyncClient) -> None:
        for address in FILES:
            assert (await client.get(address)).status_code == 404
        assert (await client.get("/health")).status_code == 200

    in_house(work, has_page=False)


def test_the_files_are_served_packed_and_ask_nobody_else() -> None:
    found = {path.name for path in FOLDER.iterdir()}
    assert found == {name for name, _ in FILES.values()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "serve/page/*" in project["tool"]["setuptools"]["package-data"]["runtime"]
    for name in found:
        text = (FOLDER / name).read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "//" not in re.sub(r"(?m)(^|\s)// .*$|^//$", "", text), f"{name} names another place"
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text)
        if name.endswith(".html"):
            assert not re.search(r"\son\w+\s*=|\sstyle\s*=|<style|javascript:", text)


def test_stats_have_at_most_the_rounds_that_are_asked_for() -> None:
    async def work(house: House, client: httpx2.AsyncClient) -> None:
        for number in range(1, NUM_KEPT + 10):
            house.rounds(report(number))
        for after, last, expected in (
            (0, 2, [NUM_KEPT + 8, NUM_KEPT + 9]),
            (NUM_KEPT + 8, 5, [NUM_KEPT + 9]),
            (NUM_KEPT + 9, 5, []),
        ):
            found = await client.get("/stats", params={"after": after, "last": last})
            assert [each["number"] for each in found.json()["rounds"]] == expected
        assert len((await client.get("/stats")).json()["rounds"]) == NUM_KEPT
        for last in (0, NUM_KEPT + 1):
            assert (await client.get("/stats", params={"last": last})).status_code == 400

    in_house(work)


def test_a_round_tells_what_the_page_shows() -> None:
    async def work(house: House, client: httpx2.AsyncClient) -> None:
        house.rounds(report(1))
        [found] = (await client.get("/stats")).json()["rounds"]
        [row] = found.pop("rows")
        assert set(found) >= {"number", "mode", "num_draft", "num_branches", "fallback", "drafter",
                              "round_ms", "verify_ms", "draft_ms", "exposed_ms"}  # fmt: skip
        assert row == {
            "slot": 0, "kind": "hit", "hit": True, "rank": 3, "is_behind": False,
            "num_drafted": 2, "accepted": 1, "num_emitted": 2,
        }  # fmt: skip

    in_house(work)


@pytest.mark.parametrize(
    ("policy", "note", "why"),
    [
        (None, None, "ssd was asked for"),
        (None, "no core for it", "no core for it"),
        ("auto runs ar", "busy; auto runs ar", "auto runs ar"),
    ],
)
def test_why_is_the_policys_word_where_there_is_a_policy(
    policy: str | None, note: str | None, why: str
) -> None:
    async def work(house: House, client: httpx2.AsyncClient) -> None:
        model = house.engines.llm
        model.note = note
        if policy is not None:
            model.settings = replace(model.settings, policy=SimpleNamespace(note=policy))
        assert (await client.get("/stats")).json()["why"] == why

    in_house(work)
