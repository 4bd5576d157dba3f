"""Run a command to its end and return its output."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence


def run_command(
    argv: Sequence[str], timeout_s: float, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run a command with `environ` added to ours. A command that cannot run or times out has exit
    code 127."""
    try:
        return subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            env={**os.environ, **environ},
        )
    except (OSError, subprocess.SubprocessError) as error:
        return subprocess.CompletedProcess(list(argv), 127, "", str(error))
