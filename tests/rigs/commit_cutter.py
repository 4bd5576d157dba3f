"""A way to PostgreSQL on which the connection breaks in the middle of a COMMIT.

What a client cannot know then is whether it took place: either the word never arrived, or it did
and its answer was lost.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from random import Random

Carry = Callable[[socket.socket, socket.socket, threading.Event], None]


class Lost(Enum):
    """What of a COMMIT does not arrive."""

    REQUEST = "request"
    ANSWER = "answer"


class CommitCutter:
    """A PostgreSQL socket in `folder` that leads to the server's in `server`. One COMMIT in `each`
    ends its connection, drawn by lot: what is done over and over in as many commits would lose the
    same one every time. 0: none does."""

    def __init__(self, folder: Path, server: Path, lost: Lost, each: int = 0) -> None:
        folder.mkdir()
        self.folder = folder
        self.each = each
        self.struck = 0
        self._server = str(server / ".s.PGSQL.5432")
        self._lost = lost
        self._lot = Random(0)
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ".s.PGSQL.5432"))
        self._listener.listen(64)
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        """End every connection and every thread."""
        for end in (self._listener, *self._ends):
            _end(end)
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            far.connect(self._server)
            self._ends += [near, far]
            struck = threading.Event()  # what the server answers from here on is lost
            self._run(self._carry_on, near, far, struck)
            self._run(self._carry_back, far, near, struck)

    def _run(self, work: Carry, *args: socket.socket | threading.Event) -> None:
        thread = threading.Thread(target=work, args=args)
        self._threads.append(thread)
        thread.start()

    def _carry_on(self, near: socket.socket, far: socket.socket, struck: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := near.recv(65536):
                if b"COMMIT" in data and self._strikes():
                    if self._lost is Lost.REQUEST:
                        break
                    struck.set()
                far.sendall(data)
        if not struck.is_set():
            _end(near)
            _end(far)

    def _carry_back(self, far: socket.socket, near: socket.socket, struck: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := far.recv(65536):
                if struck.is_set():
                    break  # the server has answered: it is committed
                near.sendall(data)
        _end(near)
        _end(far)

    def _strikes(self) -> bool:
        with self._lock:
            strikes = self.each > 0 and self._lot.randrange(self.each) == 0
            self.struck += strikes
            return strikes


def _end(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
