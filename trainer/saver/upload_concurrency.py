"""How many shards are on their way at once. They share the line, so that on a slow one none of many
is through before the store's limit of time for a request; of fewer each has more of it."""

from __future__ import annotations

MOST = 8
WIDER_AFTER = 10  # saves without trouble: each try of what is too much costs a save a minute


class UploadConcurrency:
    """`count` is between 1 and `MOST`. Belongs to one thread."""

    def __init__(self) -> None:
        self.count = MOST
        self._well = 0

    def narrow(self) -> None:
        """An upload was given up: half as many from now on."""
        self.count, self._well = max(1, self.count // 2), 0

    def note_saved(self) -> None:
        """A save met no trouble: one more, after so many of them."""
        self._well += 1
        if self._well >= WIDER_AFTER:
            self.count, self._well = min(MOST, self.count + 1), 0
