"""A box whose daemon is forked from a process that has loaded it: a start costs a fifth of the CPU,
and most tests with a daemon are not about how that is loaded."""

from __future__ import annotations

import subprocess
import sys
from typing import cast

from spotd.demo.box import Box
from tests.rigs.forks import nursery

LOADED = ("spotd.command", "spotd.cli.main", "providers.local.cloud")


class ForkedBox(Box):
    """As a `Box` that has our own Python; its cloud is as ever. Not `forking`, it is that."""

    forking = True

    def _spawn(
        self, name: str, arguments: list[str], stdout: int | None = None
    ) -> subprocess.Popen[bytes]:
        ours = self.forking and str(self.python) == sys.executable
        if not ours or arguments[:2] != ["-m", "spotd"]:
            return super()._spawn(name, arguments, stdout)
        log = self.folder / f"{name}.log"
        forked = nursery(*LOADED).fork("spotd", arguments[2:], self.environ(), self.folder, log)
        return cast("subprocess.Popen[bytes]", forked)
