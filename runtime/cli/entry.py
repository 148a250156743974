"""Parses the command line, runs one command, and turns every ending into an exit code.

0 done; 1 compare found a difference, or doctor a bundle that cannot run here; 2 error (one line on
stderr); 130 ctrl-C, after the model was closed; 141 nobody reads standard output any more
(``| head -1``); 143 SIGTERM, of a command that keeps what it has (``bench --log-outcomes``).
"""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines.errors import SsdError, as_line
from runtime.cli import batch, bench, chat, compare, doctor, embed, generate, plan, serve, trace
from runtime.cli.console import OutputClosed, emit, prepare_streams, say
from runtime.cli.options import PROGRAM, OpenLlm, Parser

if TYPE_CHECKING:
    from runtime.llm import LLM

DESCRIPTION = """\
Run a bundle: a target model and a small draft model, compiled ahead of time, that decode
together by speculative speculative decoding (SSD). The output is exactly the target's own."""

EXAMPLES = """\
examples:
  python -m runtime generate --bundle engines/bundles/demo --chat --prompt "Name three rivers."
  python -m runtime chat --bundle engines/bundles/demo
  python -m runtime serve --bundle engines/bundles/demo
  python -m runtime compare --bundle engines/bundles/demo --live
  python -m runtime doctor

To build a bundle: python -m export build --help
"""


def main(argv: Sequence[str] | None = None, open_llm: OpenLlm | None = None) -> int:
    """Run the command in ``argv`` (default: the process's own) and return its exit code.

    ``open_llm`` stands in for ``LLM.open`` in tests.
    """
    prepare_streams()
    try:
        code = _run(sys.argv[1:] if argv is None else list(argv), open_llm or _open_llm)
        # Flushed here, or the interpreter would meet a closed pipe while it shuts down.
        emit("")
    except OutputClosed as closed:
        return 141 if closed.errno == errno.EPIPE else _fail(str(closed))
    except (SsdError, OSError) as error:
        return _fail(str(error))
    except MemoryError as error:
        return _fail(f"not enough memory ({error})")
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    return code


def build_parser() -> Parser:
    """The parser of all commands; ``args.run`` is the function that runs the chosen one."""
    parser = Parser(
        prog=PROGRAM,
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for module in (generate, chat, serve, batch, compare, plan, bench, trace, doctor, embed):
        module.add_to(commands)
    return parser


def _run(argv: list[str], open_llm: OpenLlm) -> int:
    try:
        args = build_parser().parse_args(argv)
    except SystemExit:  # --help; errors are UsageError
        return 0
    args.command_line, args.open_llm = argv, open_llm
    code: int = args.run(args)
    return code


def _open_llm(bundle: Path, **options: Any) -> LLM:
    # Imported late: --help and doctor need none of it.
    from runtime.llm import LLM

    return LLM.open(bundle, **options)


def _fail(message: str) -> int:
    say("error: " + as_line(message))
    return 2
