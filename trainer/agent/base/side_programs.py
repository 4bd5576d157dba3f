"""Programs of ours beside the agent, for what it has neither the time nor the libraries for."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path


def start_beside(
    python: str, module: str, order: object, *arguments: str
) -> subprocess.Popen[bytes]:
    """Run `module` with `python`. It gets its `order` as a line of JSON on stdin, where nobody else
    sees it; when that is closed, as when we end, so does it. Raises OSError."""
    process = subprocess.Popen(
        [python, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        start_new_session=True,
    )
    assert process.stdin is not None  # noqa: S101 - a pipe was asked for
    process.stdin.write(json.dumps(order).encode() + b"\n")
    process.stdin.flush()
    return process
