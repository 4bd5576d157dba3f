"""`spotctl`, the command line. Importing it costs next to nothing; commands load what they need."""

from __future__ import annotations

import sys


def main() -> None:
    """The console script."""
    from spotd.cli.app import run

    sys.exit(run(sys.argv[1:]))
