"""``python -m export distill``: train a small draft for a target (see ``export.distill.cli``)."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from export.distill import cli

if TYPE_CHECKING:
    from export.cli.console import Parser

DESCRIPTION = """\
Train a small draft from what the target itself writes: text, training, figures on held-out text,
a model card. The result is a checkpoint folder for build --draft. Ctrl-C keeps what has been done;
the same command with --resume goes on. Needs torch: pip install 'ssd-trt[torch]'."""

EXAMPLES = """\
examples:
  python -m export distill --target smollm2-135m --out drafts/mine --write-minutes 60 --minutes 60
  python -m export distill --target smollm2-135m --out drafts/four --layers 4 --work drafts/work \\
      --prompts my-prompts.txt --evaluate spec_bench.jsonl --passes 4 --write-minutes 120
  python -m export distill --target models/Qwen3-0.6B --out drafts/qwen --device cuda --minutes 60
"""


def add_to(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = commands.add_parser(
        "distill",
        prog="python -m export distill",
        help="train a draft for a target",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    cli.add_arguments(parser)
    parser.set_defaults(command=cli.run)
