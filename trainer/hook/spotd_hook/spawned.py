"""A saver of one's own, for a program that no agent gave one: it ends with the program, after what
was staged is saved. Needs what the saver needs (the package `trainer`, xxhash, and for buckets
their client)."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path


class Spawned:
    """The saver's process; `socket` is where it accepts. `env` is what differs of ours. Close it.
    Raises OSError."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="spotd-saver-")
        self.socket = str(Path(self._folder.name) / "saver.sock")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "trainer.saver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **env, "SPOTD_SAVER": self.socket},
            start_new_session=True,  # what is meant for the program does not end it
        )
        self._ready = False

    def wait_ready(self) -> None:
        """Until it accepts. Raises OSError."""
        if self._ready:
            return
        assert self._process.stdout is not None  # noqa: S101 - as asked for
        with self._process.stdout as said:
            if said.readline() != b"ready\n":
                self.close()
                raise OSError(f"the saver did not start: it ended with {self._process.wait()}")
        self._ready = True

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self, timeout_s: float | None = None) -> bool:
        """Wait until what was staged is saved, or so long; whether it was."""
        assert self._process.stdin is not None  # noqa: S101 - as asked for
        self._process.stdin.close()
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        self._folder.cleanup()
        return code == 0
