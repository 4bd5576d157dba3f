"""The program `spotd`, also as `python -m spotd`."""

from __future__ import annotations

import gc
import sys


def entry() -> None:
    """The console script. Nothing that loading makes is rubbish: to look for some meanwhile, and
    again among all of it at the end, takes a fourth of the time that a start takes."""
    gc.disable()
    from spotd.daemon.command import main  # noqa: PLC0415 - loading is what the collector is off for

    gc.freeze()
    gc.enable()
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    entry()
