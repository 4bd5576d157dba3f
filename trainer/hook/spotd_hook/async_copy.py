"""Copy a snapshot in a thread while the program computes forward and backward passes.

Wait for the copy before changing what is copied. Standard library only, Python >= 3.10.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

MIN_BYTES = 64 << 20  # a smaller copy ends before a thread starts


class AsyncCopy:
    """One copy at a time, controlled by the training thread."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def begin(self, copy: Callable[[], None]) -> None:
        """Call `copy` in another thread. Raises RuntimeError if a copy was not waited for."""
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
        """Wait until the copy is done and raise its error."""
        if self._thread is None:
            return
        self._thread.join()
        error, self._thread, self._error = self._error, None, None
        if error is not None:
            raise error
