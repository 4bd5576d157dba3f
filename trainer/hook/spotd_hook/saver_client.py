"""A training process's line to the saver of its machine. Standard library only, Python >= 3.10."""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from .shared_memory import SharedMemory

ANSWER_S = 10.0  # for what takes no time: a saver that needs longer is stopped, or starved


class SaverError(Exception):
    """What was asked for cannot be done. `kind` is the saver's name for why."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class StoreAwayError(SaverError):
    """The store does not answer: ask again."""


class FencedError(SaverError):
    """Another writer owns HEAD: stop, nothing more will be committed."""


class CorruptError(SaverError):
    """What the checkpoint names is damaged or gone."""


_ERRORS = {
    "StoreUnavailableError": StoreAwayError,
    "FencedError": FencedError,
    "CorruptError": CorruptError,
    "NotFoundError": CorruptError,
}


class SaverClient:
    """To the saver at the unix socket `path`. One request at a time; OSError when it is gone."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise
        self._rest = b""

    def ask(self, request: str, *, within_s: float | None = None, **data: Any) -> Mapping[str, Any]:
        """The answer. Raises SaverError, and TimeoutError when a part of it takes longer than
        `within_s`; the line is closed then, since what comes late would be taken for the next."""
        self._socket.settimeout(within_s)
        try:
            answer = self._ask(request, data)[0]
        except TimeoutError:
            self.close()
            raise TimeoutError(f"no answer to {request} within {within_s} s") from None
        self._socket.settimeout(None)
        return answer

    def check(self) -> None:
        """That somebody is there: a process that is stopped accepts us, and never answers. Raises
        TimeoutError and other OSErrors."""
        with contextlib.suppress(SaverError):  # one that knows no such request is there as well
            self.ask("hello", within_s=ANSWER_S)

    def join(
        self,
        rank: int,
        ranks: Sequence[int],
        world_size: int,
        size: int,
        slots: int,
        pieces: Sequence[Mapping[str, Any]],
    ) -> SharedMemory:
        """Memory for `slots` snapshots of `size` bytes, laid out as `pieces` say; `ranks` are those
        of this machine."""
        data = {"rank": rank, "ranks": list(ranks), "world_size": world_size, "size": size}
        data |= {"slots": slots, "pieces": list(pieces)}
        _, fd = self._ask("join", data)
        if fd < 0:
            raise SaverError("ProtocolError", "the saver gave no memory")
        try:
            arena = SharedMemory(fd, size, slots)
            arena.fault_in()  # the memory is there; now our own page tables
            return arena
        finally:
            os.close(fd)

    def close(self) -> None:
        self._socket.close()

    def _ask(self, request: str, data: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
        self._socket.sendall(json.dumps({request: data}).encode() + b"\n")
        line, fd = self._answer()
        answer: Mapping[str, Any] = json.loads(line)
        error = answer.get("error")
        if error is not None:
            raise _ERRORS.get(error["kind"], SaverError)(error["kind"], error["text"])
        return answer, fd

    def _answer(self) -> tuple[bytes, int]:
        fd, parts = -1, [self._rest]
        while b"\n" not in parts[-1]:
            room = socket.CMSG_SPACE(4)
            data, beside, _, _ = self._socket.recvmsg(1 << 20, room)
            for level, kind, content in beside:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    fd = array.array("i", content[:4])[0]
            if not data:
                raise ConnectionResetError("the saver hung up")
            parts.append(data)
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return line, fd
