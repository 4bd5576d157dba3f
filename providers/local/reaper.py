"""Waits for every child, adopted orphans included, and hands out exit codes.

A subreaper gets orphans that it never started. One thread waits for all, so nobody else may:
processes started through `spawn` are waited for with `wait`, never with `Popen.wait`.
"""

from __future__ import annotations

import os
import subprocess
import threading
from typing import Any


class Reaper:
    """Starts processes and reaps everything; one thread, asleep while there are no children."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._codes: dict[int, int] = {}
        self._children = threading.Event()
        threading.Thread(target=self._reap, name="reaper", daemon=True).start()

    def spawn(self, argv: list[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a process. Raises OSError when there is no such program."""
        with self._changed:  # so that it cannot be reaped before it is known
            process = subprocess.Popen(argv, **options)
            self._running[process.pid] = process
        self._children.set()
        return process

    def wait(self, process: subprocess.Popen[bytes]) -> int:
        """The exit code, negative for a signal as in subprocess."""
        with self._changed:
            self._changed.wait_for(lambda: process.pid in self._codes)
            return self._codes.pop(process.pid)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, 0)
            except ChildProcessError:
                # No child means no descendant either: nothing can be adopted until the next spawn.
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
