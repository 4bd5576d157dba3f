"""How far something long is, for who watches it."""

from __future__ import annotations

import sys

from spotd.base.text import size


class Progress:
    """One line on a terminal's stderr that is written anew; nothing in a pipe."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._shown = sys.stderr.isatty()

    def show(self, done: int, whole: int) -> None:
        """So many bytes of so many."""
        if self._shown:
            share = 100 * done // whole if whole else 100
            text = f"{self._verb} {size(done)} of {size(whole)} ({share} %)"
            print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """The line goes."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
