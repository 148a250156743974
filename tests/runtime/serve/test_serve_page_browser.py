"""The page in a real browser: over fake engines, whose rounds and words are known, and over tiny
ones in a process of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest
import uvicorn

from runtime.bench.serving.server import server_of
from runtime.serve.process import bind, url_of
from runtime.spec.fallback import ProposalKind
from runtime.spec.plan import PLAIN, RoundPlan, RoundReport, RowReport
from tests.helpers.browser import Browser, browser
from tests.helpers.tiny_bundle import tiny_bundle
from tests.runtime.serve.house import House

pytestmark = pytest.mark.browser

MARKUP = "<img src=x onerror=alert(1)><b>bold</b> & <script>alert(2)</script>"
SSD = RoundPlan("ssd", 2, 4)


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@contextmanager
def open_house(tab: Browser, **config: object) -> Iterator[House]:
    """A house at a real socket, and the page of it in the tab."""
    house = House(**config)
    house.engines.llm.limits.max_len = 900
    bound = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(house.app, lifespan="off", log_config=None))
    thread = Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        tab.complaints.clear()
        bound.listen()  # whoever comes before the server does waits
        tab.open(url_of(bound) + "/")
        tab.until(in_state("asks for the API key" if "api_key" in config else "ready"))
        yield house
    finally:
        tab.open("about:blank")
        server.should_exit = True
        thread.join()
        bound.close()


def in_state(state: str) -> str:
    return f"document.getElementById('state').textContent === '{state}'"


def say(tab: Browser, words: str, num_answers: int = 1) -> str:
    """Say it and wait for the end of the answer, which is returned."""
    tab.type("#prompt", words)
    tab.press("Enter")
    tab.until(f"document.querySelectorAll('.note').length === {num_answers}")
    return str(tab.ask("[...document.querySelectorAll('.assistant')].at(-1).lastChild.data"))


def texts(tab: Browser, selector: str) -> list[str]:
    script = f"[...document.querySelectorAll('{selector}')].map(each => each.textContent)"
    return list(tab.ask(script))


def test_turns_go_along_and_nothing_that_is_said_becomes_markup(tab: Browser) -> None:
    with open_house(tab) as house:
        house.engines.answer = MARKUP
        assert say(tab, "<i>hi</i>") == MARKUP
        assert tab.ask("document.querySelectorAll('#said :is(img, b, i, script)').length") == 0
        say(tab, "more", num_answers=2)
        conversation, law, options = house.engines.asked[-1]
        assert conversation == f"<user><i>hi</i><assistant>{MARKUP}<user>more"
        assert (law.temperature, options["max_tokens"]) == (0.7, 200)
        tab.click("#clear")
        say(tab, "anew")
        assert house.engines.asked[-1][0] == "<user>anew"
        assert tab.complaints == []


def test_a_refusal_is_said_in_its_own_words_and_the_question_stays(tab: Browser) -> None:
    with open_house(tab) as house:
        tab.type("#prompt", "refused")
        tab.press("Enter")
        assert "asks to be" in tab.until("document.getElementById('error').textContent")
        assert tab.ask("document.getElementById('prompt').value") == "refused"
        assert texts(tab, ".turn") == []
        tab.ask("document.getElementById('prompt').value = ''")
        say(tab, "broken")
        assert "on purpose" in tab.text("#error")
        assert texts(tab, ".note") == ["broken off"]
        assert house.engines.num_running == 0


def test_stop_ends_the_answer_at_the_server_and_keeps_what_there_is(tab: Browser) -> None:
    with open_house(tab) as house:
        house.engines.gate.clear()
        tab.type("#prompt", "hi")
        tab.press("Enter")
        tab.until("document.querySelector('.assistant')?.lastChild.data === 'H'")
        tab.click("#stop")
        tab.until("document.querySelector('.note') !== null")
        assert texts(tab, ".note") == ["stopped"]
        assert tab.ask("document.getElementById('stop').hidden") is True
        tab.until("fetch('health').then(each => each.json()).then(each => each.running === 0)")
        assert house.engines.cancelled == ["<user>hi"]


def test_a_key_is_asked_for_and_kept_nowhere(tab: Browser) -> None:
    with open_house(tab, api_key="sesame"):
        tab.until("!document.getElementById('key-label').hidden")
        tab.type("#prompt", "hi")
        tab.press("Enter")
        assert "API key" in tab.until("document.getElementById('error').textContent")
        tab.ask("document.getElementById('prompt').value = ''")
        tab.type("#key", "sesame")
        tab.until(in_state("ready"))
        assert say(tab, "hi") == "Hello, w\xf6rld"
        assert tab.ask("localStorage.length + sessionStorage.length + document.cookie.length") == 0
        assert "sesame" not in tab.ask("location.href + document.documentElement.outerHTML")


def row(kind: str, hit: bool | None, *, rank: int | None = None, slot: int = 0) -> RowReport:
    drafted = 0 if kind == "none" else 2
    return RowReport(slot, ProposalKind[kind.upper()], drafted, drafted // 2, hit, 1, rank)


def test_each_way_to_begin_a_round_is_told_apart(tab: Browser) -> None:
    rounds = [
        ("hit", RoundReport(1, (row("hit", True, rank=1),), SSD, 0.01, 0.008, 0.006, 0.001)),
        ("zero", RoundReport(2, (row("none", False),), SSD, 0.01, 0.008)),
        ("jit", RoundReport(3, (row("jit", False, rank=4),), SSD, 0.01, 0.008)),
        ("lookup", RoundReport(4, (row("lookup", False),), SSD, 0.01, 0.008)),
        ("drafted", RoundReport(5, (row("jit", None),), RoundPlan("sd", 2), 0.01, 0.008, 0.001)),
        ("plain", RoundReport(6, (row("none", None), row("none", None, slot=1)), PLAIN)),
    ]  # fmt: skip
    with open_house(tab) as house:
        tab.resize(900, 700)
        for _, report in rounds:
            house.rounds(report)
        tab.until("document.querySelectorAll('#drawing .plain').length === 2")
        for kind, report in rounds:
            count = f"document.querySelectorAll('#drawing .{kind}').length"
            assert tab.ask(count) == len(report.rows), kind
        width = "document.querySelector('#drawing .{}').getBoundingClientRect().width"
        assert tab.ask(width.format("waited")) / tab.ask(width.format("hidden")) == pytest.approx(
            1 / 5, rel=0.01
        )
        assert tab.text("#mode-name") == "ar"
        assert (tab.text("#length"), tab.text("#hits"), tab.text("#speed")) == (
            "1.00", "25 %", "100",
        )  # fmt: skip
        tab.ask("document.getElementById('timeline').focus()")
        told = []
        for _ in rounds:
            tab.press("ArrowLeft")
            told.append(tab.text("#told"))
        plain, drafted, lookup, jit, zero, hit = told
        assert "row 1: plain" in plain
        assert "drafted before; accepted 1 of 2" in drafted
        assert "miss, copied by lookup" in lookup
        assert "miss, just in time; accepted 1 of 2; bonus token's rank 4" in jit
        assert "miss, zero drafts; bonus token unranked; 1 token emitted" in zero
        assert "10.0 ms: verification 8.0 ms, draft 6.0 ms (5.0 of it hidden)" in hit
        assert "hit; accepted 1 of 2; bonus token's rank 1; 1 token emitted" in hit
        house.rounds(rounds[0][1])
        tab.press("Escape")
        assert tab.ask("document.getElementById('told').hidden") is True


def test_it_fits_a_phone_in_both_colour_schemes(tab: Browser) -> None:
    with open_house(tab):
        for is_dark in (False, True):
            tab.resize(360, 740, is_dark=is_dark)
            assert tab.ask("document.documentElement.scrollWidth") == 360
            back = tab.ask("getComputedStyle(document.body).backgroundColor")
            assert back == ("rgb(20, 23, 27)" if is_dark else "rgb(245, 246, 248)")
        unnamed = "[...document.querySelectorAll('input, textarea')].filter(e => !e.labels.length)"
        assert tab.ask(f"{unnamed}.length") == 0


def test_a_real_server_answers_and_shows_its_rounds(tab: Browser) -> None:
    with server_of(["--bundle", str(tiny_bundle().path), "--mode", "ssd", "--quiet"]) as server:
        tab.complaints.clear()
        tab.open(server.url + "/")
        tab.until(in_state("ready"))
        tab.ask("document.getElementById('max-tokens').value = 20")
        assert say(tab, "hi")
        tab.until("document.querySelectorAll('#drawing :is(.hit, .zero, .jit, .lookup)').length")
        assert tab.text("#mode-name") == "ssd"
        assert tab.text("#why") == "ssd was asked for"
        assert float(tab.text("#length")) >= 1
        assert tab.complaints == []
        tab.open("about:blank")
