"""The least that a save can be, for `bench.checkpoint`: the state is copied into warm memory beside
the loop, and then a process that yields to it writes that past the page cache. No digests, no
bucket, no protocol: what this takes from the loop, no engine that saves beside it takes less of.
`python -m bench.least FD SIZE FOLDER` is that process: a write for each line that it reads."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainer.hook.spotd_hook.shared_memory import SharedMemory, make_memory
from trainer.saver.__main__ import lower_priority
from trainer.saver.disk import LocalTier
from trainer.saver.streams import FillingSlot

NAME = "raw"


class Least:
    """Of `state`, whose tensors lie in a snapshot as `pieces` say. Close it."""

    def __init__(
        self, state: Mapping[str, Any], pieces: list[dict[str, Any]], size: int, folder: Path
    ) -> None:
        self._state, self._pieces = state, pieces
        fd = make_memory(size, 1)
        os.set_inheritable(fd, True)
        self._arena = SharedMemory(fd, size, 1)
        self._arena.fault_in()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.least", str(fd), str(size), str(folder / "least")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(fd,),
            start_new_session=True,  # as the saver: its niceness is its group's
        )
        os.close(fd)
        self._read()  # it is ready
        self._copy: threading.Thread | None = None
        self._written = threading.Event()

    def save(self, _: Path) -> Callable[[], bool]:
        """Beside the loop."""
        self._written.clear()
        copied = threading.Event()
        self._copy = threading.Thread(target=self._copy_all, args=(copied,))
        self._copy.start()
        threading.Thread(target=self._write, args=(copied,), daemon=True).start()
        return self._written.is_set

    def fence(self) -> None:
        """Before the state changes."""
        if self._copy is not None:
            self._copy.join()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _copy_all(self, copied: threading.Event) -> None:
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._arena.slot(0)))
        for tensor, piece in zip(self._state.values(), self._pieces, strict=True):
            ctypes.memmove(address + piece["offset"], tensor.data_ptr(), tensor.nbytes)
        copied.set()

    def _write(self, copied: threading.Event) -> None:
        copied.wait()
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        self._read()
        self._written.set()

    def _read(self) -> None:
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise OSError("the process that writes has ended")


def main() -> None:
    fd, size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    lower_priority()
    arena, tier = SharedMemory(fd, size, 1), LocalTier(folder)
    arena.fault_in()
    print("ready", flush=True)
    for _ in sys.stdin:
        tier.write(
            NAME, FillingSlot(arena.padded(0), lambda: size, lambda: False), size, time.sleep
        )
        print("written", flush=True)
        tier.discard(NAME)


if __name__ == "__main__":
    main()
