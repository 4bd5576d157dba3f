"""Commands that are run to their end for what they say."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence


def asked(
    argv: Sequence[str], timeout_s: float, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, `environ` added to ours; one that cannot be run, or hangs, has
    failed."""
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
