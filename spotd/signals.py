"""Signals as something to wait for."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable


class Signals:
    """Those of `wanted` that nobody has us ignore (as nohup does), from now on.

    They come through a pipe that the interpreter itself writes to: a thread that waits for a lock
    would sleep on over a signal that came at the very moment when its wait began.
    """

    def __init__(self, wanted: Iterable[signal.Signals]) -> None:
        self._out, self._in = os.pipe()
        os.set_blocking(self._in, False)
        self._wanted = {s for s in wanted if signal.getsignal(s) is not signal.SIG_IGN}
        signal.set_wakeup_fd(self._in, warn_on_full_buffer=False)
        for number in self._wanted:
            signal.signal(number, lambda *_: None)

    def wait(self) -> signal.Signals:
        """The next one; on the main thread."""
        while True:
            received = signal.Signals(os.read(self._out, 1)[0])
            if received in self._wanted:
                return received

    def close(self) -> None:
        """Hear no more."""
        signal.set_wakeup_fd(-1)
        os.close(self._in)
        os.close(self._out)
