"""The disk under the job: one that stays full takes no log, no data and no save in a file, and
another machine has a fresh one. The journal says so, and says when there is room again."""

from __future__ import annotations

import os
from pathlib import Path

from spotd import wire
from trainer.agent.base.journal import Journal

# Less than a checkpoint or a data set is, so that nobody works at this edge on purpose; and more
# than the journal and a log (16 MiB, twice a stream) take until another machine has come up.
LOW_MIB = 64
# A program that saves in files and removes the old ones then has done so by now.
STAYS_S = 60.0
LOOK_EVERY_S = 1.0


class Disk:
    """Belongs to the agent's loop. `full` is what the journal says of it so far."""

    def __init__(
        self, folder: Path, journal: Journal, now: float, *, full: bool, stays_s: float = STAYS_S
    ) -> None:
        self._folder = folder
        self._journal = journal
        self._full = full
        self._look_at = self._since = now
        self._stays_s = stays_s

    def look(self, now: float) -> None:
        """Whether it has been otherwise for long enough. Raises OSError."""
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_S
        full, text = _look(self._folder)
        if self._journal.refused and not full:  # by a quota, which nobody shows
            full, text = True, f"it refuses the journal at {self._folder}"
        if full is self._full:
            self._since = now
        elif now - self._since >= self._stays_s:
            self._full, self._since = full, now
            self._journal.append(wire.DISK, {"full": full, "text": text})


def _look(folder: Path) -> tuple[bool, str]:
    """Whether it is full for a program of ours, and in words. A file system that does not tell its
    size has room for all we know."""
    found = os.statvfs(folder)
    if not found.f_blocks:
        return False, f"how much is free at {folder} is not known"
    if found.f_files and not found.f_ffree:
        return True, f"no file more can be made at {folder}"
    # Some of it is kept for root, which the program is where its agent is.
    blocks = found.f_bavail if os.geteuid() else found.f_bfree
    free, size = (count * found.f_frsize >> 20 for count in (blocks, found.f_blocks))
    return free < LOW_MIB, f"{free} of {size} MiB are free at {folder}"
