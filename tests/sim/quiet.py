"""What a batch says while it goes on: not the daemon's log, which tells of every fault."""

from __future__ import annotations

import logging
import sys
import time

import structlog

LINE_S = 30.0  # between lines where there is no terminal
_said_s = time.monotonic()


def quiet() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def progress(text: str, done: bool) -> None:
    """How far it is: over and over in one line of a terminal, else a line now and then."""
    global _said_s  # noqa: PLW0603 - one batch a process
    if sys.stderr.isatty():
        print(f"\r{text}", end="\n" if done else "", file=sys.stderr, flush=True)
    elif time.monotonic() - _said_s > LINE_S:
        _said_s = time.monotonic()
        print(text, file=sys.stderr, flush=True)
