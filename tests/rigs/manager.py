"""systemd's end of the notify socket."""

from __future__ import annotations

import socket
import threading
from pathlib import Path


class Manager:
    """Hears what a daemon with NOTIFY_SOCKET=`path` says; `said` is one entry a datagram."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.said: list[bytes] = []
        self.thread = threading.Thread(target=self._listen)
        self.thread.start()

    def _listen(self) -> None:
        while word := self.socket.recv(1 << 16):
            self.said.append(word)

    def hears(self, word: bytes) -> bool:
        return word in self.said

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"", self.socket.getsockname())
        self.thread.join()
        self.socket.close()
