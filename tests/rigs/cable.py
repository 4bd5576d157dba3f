"""A cable between a daemon and its database that can be cut, and mended.

While it is cut nothing gets through in either direction, and nobody is told: connections stay open
as they do when a switch dies, and what was on its way arrives when it is mended.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path


class Cable:
    """A PostgreSQL socket in `folder` that leads to the server's in `server`."""

    def __init__(self, folder: Path, server: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self._server = str(server / ".s.PGSQL.5432")
        self._whole = threading.Event()
        self._whole.set()
        self._ended = False
        self._ends: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ".s.PGSQL.5432"))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._whole.clear()

    def mend(self) -> None:
        self._whole.set()

    def close(self) -> None:
        """End every connection."""
        self._ended = True
        self._whole.set()
        self._listener.close()
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        while not self._ended:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self._ends.append(near)
            threading.Thread(target=self._connect, args=[near], daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        self._whole.wait()
        far = socket.socket(socket.AF_UNIX)
        self._ends.append(far)
        try:
            far.connect(self._server)
        except OSError:
            near.close()
            return
        for pair in ((near, far), (far, near)):
            threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._whole.wait()
                target.sendall(data)
        self._whole.wait()
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
