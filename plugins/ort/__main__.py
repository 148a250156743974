"""``python -m plugins.ort``: compile the kernels for ONNX Runtime on this machine's processor."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from engines.errors import SsdError, as_line
from plugins.ort import library

DESCRIPTION = f"""\
Compile our kernels for ONNX Runtime on this machine's processor, which takes two seconds, once.
Engines do it by themselves when they are first loaded: this is for images, whose users may have no
compiler, and to see why there are none. Without them ONNX Runtime's own kernels run, which are
slower where several tokens are verified. {library.SWITCH}=off leaves everything to those."""

EXAMPLES = """\
exit code: 0, also where this machine runs without them; 2 for an error, one line on stderr; 130
after Ctrl-C

examples:
  python -m plugins.ort
  python -m plugins.ort --package --json
"""


def main(argv: Sequence[str] | None = None) -> int:
    """0, or 2 with one line on stderr."""
    options = _parser().parse_args(argv)
    try:
        found = library.package() if options.package else library.find()
    except SsdError as error:
        sys.stderr.write(f"error: {as_line(str(error))}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    if options.json:
        path = None if found.path is None else str(found.path)
        record = {"library": path, "kernels": found.identity, "reason": found.reason}
        sys.stdout.write(f"{json.dumps(record)}\n")
    elif found.path is None:
        sys.stdout.write(f"none: {as_line(found.reason)}; ONNX Runtime's own kernels run\n")
    else:
        sys.stdout.write(f"kernels {found.identity}: {found.path}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m plugins.ort",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--package",
        action="store_true",
        help="compile them into the package itself instead of the user's cache, for any processor",
    )
    parser.add_argument("--json", action="store_true", help="print where they are as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
