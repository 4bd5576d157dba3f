"""Wait for signals on the main thread."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable


class Signals:
    """Handles the `wanted` signals, except those that are ignored (as nohup does).

    Signals arrive through a pipe that the interpreter writes to. A thread that waits for a lock
    could miss a signal that arrives just as its wait begins.
    """

    def __init__(self, wanted: Iterable[signal.Signals]) -> None:
        self._out, self._in = os.pipe()
        os.set_blocking(self._in, False)
        self._wanted = {s for s in wanted if signal.getsignal(s) is not signal.SIG_IGN}
        signal.set_wakeup_fd(self._in, warn_on_full_buffer=False)
        for number in self._wanted:
            signal.signal(number, lambda *_: None)

    def wait(self) -> signal.Signals:
        """Return the next signal. Call it on the main thread."""
        while True:
            received = signal.Signals(os.read(self._out, 1)[0])
            if received in self._wanted:
                return received

    def close(self) -> None:
        """Stop handling signals."""
        signal.set_wakeup_fd(-1)
        os.close(self._in)
        os.close(self._out)
