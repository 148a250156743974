"""One line of what Ray says over a page. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

_EXCEPTION = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception): (.*)")


def reason_of(reports: Sequence[str]) -> str:
    """What reports come down to: the message of the last exception in a traceback, or
    the first report's last line where there is none."""
    lines = [line.strip() for report in reports for line in report.splitlines() if line.strip()]
    named = [found[1] for line in lines if (found := _EXCEPTION.match(line))]
    first = [line for line in reports[0].splitlines() if line.strip()]
    return named[-1] if named else first[-1].strip() if first else "it does not say why"
