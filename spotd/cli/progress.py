"""Progress line of a long transfer."""

from __future__ import annotations

import sys

from spotd.base.text import size


class Progress:
    """A line on a terminal's stderr that is rewritten in place; nothing if stderr is a pipe."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._enabled = sys.stderr.isatty()

    def show(self, done: int, total: int) -> None:
        """Show that `done` of `total` bytes are done."""
        if self._enabled:
            share = 100 * done // total if total else 100
            line = f"{self._verb} {size(done)} of {size(total)} ({share} %)"
            print(f"\r{line}\x1b[K", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Erase the line."""
        if self._enabled:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
