"""A program that a test holds at some place until it lets it go on."""

from __future__ import annotations

import os
import time
from pathlib import Path


def hold_until(file: Path) -> None:
    """In the program: wait until the test lets it go on."""
    while not file.exists():
        time.sleep(0.005)
    if file.read_text() == os.environ.get("SPOTD_GENERATION"):
        from spotd_hook.program import Program  # as the program itself imports it

        while not Program.current().stop.stopping:
            time.sleep(0.005)


def let_go(file: Path, *, stopped: int = 0) -> None:
    """In the test: let the program go on.

    `stopped` is the generation that is not to go on before it has heard of its stop.
    """
    draft = file.with_name(f"{file.name} draft")
    draft.write_text(str(stopped))
    draft.rename(file)
