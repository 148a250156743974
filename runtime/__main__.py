"""``python -m runtime``: see ``python -m runtime --help``."""

import sys

from runtime.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
