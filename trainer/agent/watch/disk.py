"""Watch the disk of the job: one that stays full accepts no log, data or save in a file.

Another machine has a fresh disk. The journal records when the disk is full and when it has space
again.
"""

from __future__ import annotations

import os
from pathlib import Path

from spotd import wire
from trainer.agent.base.journal import Journal

# Less than a checkpoint or data set, so that no job works with so little on purpose; and more than
# the journal and a log (16 MiB, two files a stream) need until another machine is up.
LOW_MIB = 64
# By then a program that saves to files has removed its old ones.
CONFIRM_S = 60.0
CHECK_EVERY_S = 1.0


class DiskMonitor:
    """Reports when the disk stays full. Belongs to the agent's loop.

    `full` is what the journal has reported so far.
    """

    def __init__(
        self,
        folder: Path,
        journal: Journal,
        now: float,
        *,
        full: bool,
        confirm_s: float = CONFIRM_S,
    ) -> None:
        self._folder = folder
        self._journal = journal
        self._full = full
        self._check_at = self._since = now
        self._confirm_s = confirm_s

    def check(self, now: float) -> None:
        """Report a change that has lasted long enough. Raises OSError."""
        if now < self._check_at:
            return
        self._check_at = now + CHECK_EVERY_S
        full, text = _is_full(self._folder)
        if self._journal.out_of_space and not full:  # a quota, which statvfs does not show
            full, text = True, f"it refuses the journal at {self._folder}"
        if full is self._full:
            self._since = now
        elif now - self._since >= self._confirm_s:
            self._full, self._since = full, now
            self._journal.append(wire.DISK, {"full": full, "text": text})


def _is_full(folder: Path) -> tuple[bool, str]:
    """Return whether the disk is full for the program, and a description.

    A file system that does not report its size counts as not full.
    """
    status = os.statvfs(folder)
    if not status.f_blocks:
        return False, f"how much is free at {folder} is not known"
    if status.f_files and not status.f_ffree:
        return True, f"no file more can be made at {folder}"
    # Some blocks are reserved for root; the program runs as the same user as its agent.
    blocks = status.f_bavail if os.geteuid() else status.f_bfree
    free, size = (count * status.f_frsize >> 20 for count in (blocks, status.f_blocks))
    return free < LOW_MIB, f"{free} of {size} MiB are free at {folder}"
