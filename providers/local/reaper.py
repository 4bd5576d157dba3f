"""Reap all child processes of a machine, adopted orphans included.

A subreaper also gets orphans that it did not start. One thread waits for all children, so other
code must not: wait for processes started with `Reaper.spawn` by `Reaper.wait`, never `Popen.wait`.
"""

from __future__ import annotations

import os
import subprocess
import threading
from typing import Any


class Reaper:
    """Starts processes and reaps all children on one thread, which sleeps while there are none."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._codes: dict[int, int] = {}
        self._children = threading.Event()
        threading.Thread(target=self._reap, name="reaper", daemon=True).start()

    def spawn(self, argv: list[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a process. Raises OSError if the program does not exist."""
        with self._changed:  # so that it cannot be reaped before it is registered
            process = subprocess.Popen(argv, **options)
            self._running[process.pid] = process
        self._children.set()
        return process

    def wait(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for the process; return its exit code, negative for a signal as in subprocess."""
        with self._changed:
            self._changed.wait_for(lambda: process.pid in self._codes)
            return self._codes.pop(process.pid)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, 0)
            except ChildProcessError:
                # No children means no descendants: nothing to adopt until the next spawn.
                self._children.wait()
                self._children.clear()
                continue
            code = os.waitstatus_to_exitcode(status)
            with self._changed:
                process = self._running.pop(pid, None)
                if process is not None:
                    process.returncode = code
                    self._codes[pid] = code
                    self._changed.notify_all()
