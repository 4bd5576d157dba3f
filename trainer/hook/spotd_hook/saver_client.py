"""A training process's connection to the saver of its machine.

Standard library only, Python >= 3.10.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from .shared_memory import SharedMemory

REPLY_TIMEOUT_S = 10.0  # for quick requests: a slower saver is stopped or starved


class SaverError(Exception):
    """The saver refused a request. `kind` is the name of the saver's error."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class StoreAwayError(SaverError):
    """The store does not answer: retry."""


class FencedError(SaverError):
    """Another generation owns HEAD: stop, nothing more will be committed."""


class CorruptError(SaverError):
    """An object of the checkpoint is damaged or missing."""


_ERRORS = {
    "StoreUnavailableError": StoreAwayError,
    "FencedError": FencedError,
    "CorruptError": CorruptError,
    "NotFoundError": CorruptError,
}


class SaverClient:
    """A connection to the saver at the unix socket `path`; one request at a time.

    Methods raise OSError when the saver is gone.
    """

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise
        self._rest = b""

    def request(
        self, kind: str, *, within_s: float | None = None, **data: Any
    ) -> Mapping[str, Any]:
        """Send a request and return the reply.

        Raises SaverError, and TimeoutError if a part of the reply takes longer than `within_s`;
        then the connection is closed, because a late reply would be taken for the next one.
        """
        self._socket.settimeout(within_s)
        try:
            reply = self._send_request(kind, data)[0]
        except TimeoutError:
            self.close()
            raise TimeoutError(f"no answer to {kind} within {within_s} s") from None
        self._socket.settimeout(None)
        return reply

    def check(self) -> None:
        """Check that the saver replies: a stopped process accepts connections and never answers.

        Raises TimeoutError and other OSErrors.
        """
        with contextlib.suppress(SaverError):  # an older saver rejects the request: it is alive
            self.request("hello", within_s=REPLY_TIMEOUT_S)

    def join(
        self,
        rank: int,
        ranks: Sequence[int],
        world_size: int,
        size: int,
        slots: int,
        pieces: Sequence[Mapping[str, Any]],
    ) -> SharedMemory:
        """Map memory for `slots` snapshots of `size` bytes laid out as `pieces`.

        `ranks` are those of this machine.
        """
        data = {"rank": rank, "ranks": list(ranks), "world_size": world_size, "size": size}
        data |= {"slots": slots, "pieces": list(pieces)}
        _, fd = self._send_request("join", data)
        if fd < 0:
            raise SaverError("ProtocolError", "the saver gave no memory")
        try:
            memory = SharedMemory(fd, size, slots)
            memory.fault_in()  # the pages exist; this fills our page tables
            return memory
        finally:
            os.close(fd)

    def close(self) -> None:
        self._socket.close()

    def _send_request(self, kind: str, data: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
        self._socket.sendall(json.dumps({kind: data}).encode() + b"\n")
        reply_line, fd = self._read_reply()
        reply: Mapping[str, Any] = json.loads(reply_line)
        error = reply.get("error")
        if error is not None:
            raise _ERRORS.get(error["kind"], SaverError)(error["kind"], error["text"])
        return reply, fd

    def _read_reply(self) -> tuple[bytes, int]:
        fd, parts = -1, [self._rest]
        while b"\n" not in parts[-1]:
            ancillary_size = socket.CMSG_SPACE(4)
            data, ancillary, _, _ = self._socket.recvmsg(1 << 20, ancillary_size)
            for level, kind, content in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    fd = array.array("i", content[:4])[0]
            if not data:
                raise ConnectionResetError("the saver closed the connection")
            parts.append(data)
        reply_line, _, self._rest = b"".join(parts).partition(b"\n")
        return reply_line, fd
