"""The machine's own preparation, where its cloud starts it with one: nothing of the job runs on it
before that has ended well."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from spotd import wire
from trainer.agent.base.journal import Journal

OK = "ok"
# Disks, clock and eight GPUs are a matter of two minutes; its own waits end within this.
LIMIT_S = 900.0
_LOOK_S = 0.1
_MOST_BYTES = 400


class Preparation:
    """`path` is the file that it leaves when it is over: "ok", or one line on what is wrong; "" of
    a machine that needs none. `said`: that it ended well is in the journal of an agent before."""

    def __init__(self, path: str = "", limit_s: float = LIMIT_S, *, said: bool = False) -> None:
        self._path = path
        self._limit_s = limit_s
        self._said = said or not path
        self._told = False
        self._since: float | None = None
        self._well = threading.Event()
        if not path:
            self._well.set()

    def look(self, journal: Journal, now: float) -> str:
        """What is wrong, by now; "" for nothing. Called by the agent's loop, at every turn."""
        if self._well.is_set():
            return ""
        if self._since is None:
            self._since = now
        text = _read(self._path)
        if text is None:
            self._tell_begin(journal)
            if now - self._since < self._limit_s:
                return ""
            return f"its preparation has not ended within {self._limit_s:.0f} s"
        if text != OK:
            return text or f"{self._path} is empty"
        if not self._said:
            journal.append(wire.PREPARED, {"status": "ok", "seconds": round(now - self._since, 3)})
        self._well.set()
        return ""

    def wait(self, given_up: Callable[[], bool]) -> bool:
        """From another thread than `look`: True once it has ended well, False when nobody waits for
        it any more."""
        while not self._well.wait(_LOOK_S):
            if given_up():
                return False
        return True

    def _tell_begin(self, journal: Journal) -> None:
        if not self._said and not self._told:
            self._told = True
            journal.append(wire.PREPARED, {"status": "begin"})


def _read(path: str) -> str | None:
    """Its first line; None while there is none that can be read."""
    with suppress(OSError), Path(path).open("rb") as file:
        return file.read(_MOST_BYTES).decode("utf-8", "replace").partition("\n")[0].strip()
    return None
