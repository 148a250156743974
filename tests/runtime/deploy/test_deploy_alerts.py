"""alerts.yml reads what the server exports, and fires where it should."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import promql_parser
import pytest

from runtime.serve.http.metrics import FAST_S
from runtime.spec.fallback import ProposalKind
from runtime.spec.plan import MODES
from tests.runtime.deploy.deployed import (
    RULES,
    exported,
    exported_samples,
    page,
    page_blocks,
    recorded,
    rules,
    selectors,
)

OF_PROMETHEUS = {"up"}
OF_SCRAPES = {"instance", "job"}
"""Labels that Prometheus adds."""
VALUES = {
    "status": {"0", "200", "400", "401", "429", "500", "503", "504"},
    "finished_reason": {"stop", "length", "cancelled", "error"},
    "position": {"0"},
    "state": {"hidden", "exposed"},
    "mode": set(MODES),
    "source": {kind.name.lower() for kind in ProposalKind},
    "job": {"ssd-trt"},
}
EXPRESSIONS = [
    *(pytest.param(rule["expr"], id=rule.get("alert") or rule["record"]) for rule in rules()),
    *(pytest.param(block.text, id=f"line {block.line}") for block in page_blocks("promql")),
]


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_it_reads_series_that_there_are(text: str) -> None:
    """An alert over a name that nobody exports never fires."""
    families = {name: each for each in exported().values() for name in each.samples}
    found = list(selectors(promql_parser.parse(text)))
    assert found
    for selector in found:
        name = selector.name
        assert name in exported_samples() | recorded() | OF_PROMETHEUS
        for matcher in selector.matchers.matchers:
            known = families[name].labels if name in families else set()
            assert matcher.name in known | OF_SCRAPES, f"{name} has no label {matcher.name}"
            assert matcher.value in VALUES[matcher.name], f"{matcher.name} is never {matcher.value}"


def test_every_recorded_figure_is_used_or_named() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    read = " ".join([page(), *(alert["expr"] for alert in alerts)])
    for name in recorded():
        assert name.startswith("ssd_trt:")
        assert name in read, f"nobody reads {name}"


def test_every_alert_says_how_bad_it_is_and_what_happened() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    assert len({rule["alert"] for rule in alerts}) == len(alerts)
    for alert in alerts:
        assert alert["labels"]["severity"] in {"page", "ticket", "info"}
        assert alert["annotations"]["summary"]


def test_no_threshold_is_where_a_quantile_cannot_get() -> None:
    """A quantile never exceeds its histogram's last bucket: such an alert would be silent."""
    limits = []
    for rule in rules():
        if "P99" in rule.get("alert", ""):
            expression = promql_parser.parse(rule["expr"])
            assert expression.lhs.name in recorded()
            limits.append(expression.rhs.val)
    assert len(limits) == 2
    assert all(0 < limit < FAST_S[-1] for limit in limits)


@pytest.mark.promtool
def test_each_alert_fires_where_it_should_and_not_where_all_is_well(tmp_path: Path) -> None:
    cases = Path(__file__).with_name("alerts_test.yml")
    for file in (RULES, cases):
        shutil.copy(file, tmp_path)
    words = cases.read_text(encoding="utf-8")
    assert all(rule["alert"] in words for rule in rules() if "alert" in rule)
    done = subprocess.run(
        ["promtool", "test", "rules", cases.name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
