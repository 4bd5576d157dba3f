"""Start helper programs beside the agent, for work that takes time or needs libraries that the
agent lacks."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path


def start_side_program(
    python: str, module: str, request: object, *arguments: str
) -> subprocess.Popen[bytes]:
    """Run `module` with `python`, and send it `request` as one JSON line on stdin, where nobody
    else can read it.

    The program ends when its stdin is closed, so also when the agent ends. Raises OSError.
    """
    process = subprocess.Popen(
        [python, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        start_new_session=True,
    )
    assert process.stdin is not None  # noqa: S101 - it is a pipe
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()
    return process
