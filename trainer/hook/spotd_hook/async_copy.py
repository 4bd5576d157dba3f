"""Staging beside training: the copy of a snapshot in a thread of its own, while the program does
what changes nothing of it: forward and backward. Whoever changes it waits for the copy first.
Standard library only, Python >= 3.10."""

from __future__ import annotations

import threading
from collections.abc import Callable

LEAST_BYTES = 64 << 20  # what is smaller is copied before a thread has begun


class AsyncCopy:
    """Belongs to the thread that trains. One copy at a time."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def begin(self, copy: Callable[[], None]) -> None:
        """Have `copy` called by another thread; the one before has to be waited for."""
        if self._thread is not None:
            raise RuntimeError("wait for the copy before")

        def run() -> None:
            try:
                copy()
            except BaseException as error:  # noqa: BLE001 - raised by wait()
                self._error = error

        self._thread = threading.Thread(target=run, name="stage", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until it is done. Raises what it raised."""
        if self._thread is None:
            return
        self._thread.join()
        error, self._thread, self._error = self._error, None, None
        if error is not None:
            raise error
