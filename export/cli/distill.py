"""``python -m export distill``: train a small draft for a target (see ``export.distill.cli``)."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from export.distill import cli

if TYPE_CHECKING:
    from export.cli.console import Parser

DESCRIPTION = """\
Train a small draft from what the target itself writes. The result is a checkpoint folder for
build --draft. Needs torch: pip install 'ssd-trt[torch]'."""


def add_to(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = commands.add_parser(
        "distill",
        prog="python -m export distill",
        help="train a draft for a target",
        description=DESCRIPTION,
    )
    cli.add_arguments(parser)
    parser.set_defaults(command=cli.run)
