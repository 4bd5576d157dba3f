"""A saver started by the training program itself, for runs without an agent.

It ends with the program, after saving what is staged. Needs what the saver needs: the package
`trainer`, xxhash, and obstore for buckets.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path


class SpawnedSaver:
    """The saver's process; close it.

    `socket` is its socket path, `env` overrides our environment. Raises OSError.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="spotd-saver-")
        self.socket = str(Path(self._folder.name) / "saver.sock")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "trainer.saver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **env, "SPOTD_SAVER": self.socket},
            start_new_session=True,  # signals to the program's group do not end it
        )
        self._ready = False

    def wait_ready(self) -> None:
        """Wait until it accepts connections. Raises OSError."""
        if self._ready:
            return
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        with self._process.stdout as output:
            if output.readline() != b"ready\n":
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
        """Wait until everything staged is saved, at most `timeout_s`; return whether it is."""
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        self._process.stdin.close()
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        self._folder.cleanup()
        return code == 0
