"""A program that a test holds at some place until it lets it go on."""

from __future__ import annotations

import time
from pathlib import Path

_STOPPED = "after the stop has arrived"


def hold_until(file: Path) -> None:
    """In the program: wait until the test lets it go on."""
    while not file.exists():
        time.sleep(0.005)
    if file.read_text() == _STOPPED:
        from trainer.hook.spotd_hook.program import Program

        while not Program.current().stop.stopping:
            time.sleep(0.005)


def let_go(file: Path, *, stopped: bool = False) -> None:
    """In the test: let the program go on; with `stopped`, not before it has heard of its stop."""
    draft = file.with_name(f"{file.name} draft")
    draft.write_text(_STOPPED if stopped else "")
    draft.rename(file)
