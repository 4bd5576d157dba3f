"""Wait for the machine's own preparation, where its cloud boots it with one.

Nothing of the job runs before the preparation has succeeded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from spotd import wire
from trainer.agent.base.journal import Journal

OK = "ok"
# Disks, clock and eight GPUs take about two minutes; the script's own timeouts end before this.
LIMIT_S = 900.0
_POLL_S = 0.1
_MAX_BYTES = 400


class Preparation:
    """The state of the preparation.

    `path` is the file that it writes at its end: "ok", or one line with the problem. "" means that
    the machine needs no preparation. `success_reported`: an earlier agent has already recorded the
    success.
    """

    def __init__(
        self, path: str = "", limit_s: float = LIMIT_S, *, success_reported: bool = False
    ) -> None:
        self._path = path
        self._limit_s = limit_s
        self._success_reported = success_reported or not path
        self._begin_reported = False
        self._started_at: float | None = None
        self._succeeded = threading.Event()
        if not path:
            self._succeeded.set()

    def check(self, journal: Journal, now: float) -> str:
        """Return the problem found so far, or "". The agent's loop calls this in every
        iteration."""
        if self._succeeded.is_set():
            return ""
        if self._started_at is None:
            self._started_at = now
        result = _read(self._path)
        if result is None:
            self._report_begin(journal)
            if now - self._started_at < self._limit_s:
                return ""
            return f"the machine's preparation has not finished within {self._limit_s:.0f} s"
        if result != OK:
            return result or f"{self._path} is empty"
        if not self._success_reported:
            journal.append(
                wire.PREPARED, {"status": "ok", "seconds": round(now - self._started_at, 3)}
            )
        self._succeeded.set()
        return ""

    def wait(self, cancelled: Callable[[], bool]) -> bool:
        """Block until the preparation succeeded; False if `cancelled` first. Call from another
        thread than `check`."""
        while not self._succeeded.wait(_POLL_S):
            if cancelled():
                return False
        return True

    def _report_begin(self, journal: Journal) -> None:
        if not self._success_reported and not self._begin_reported:
            self._begin_reported = True
            journal.append(wire.PREPARED, {"status": "begin"})


def _read(path: str) -> str | None:
    """Return the file's first line, or None while it cannot be read."""
    with suppress(OSError), Path(path).open("rb") as file:
        return file.read(_MAX_BYTES).decode("utf-8", "replace").partition("\n")[0].strip()
    return None
