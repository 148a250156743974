"""``python -m export``: see ``python -m export --help``."""

import sys

from export.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
