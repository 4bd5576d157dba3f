"""Wait for a condition. Only a broken build meets a limit, on however busy a machine."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
LIMIT_S = 60.0


def wait_until(
    what: str, probe: Callable[[], T | None], limit_s: float = LIMIT_S, every_s: float = 0.01
) -> T:
    """The first true value of `probe`; AssertionError naming `what` when none comes."""
    end_s = time.monotonic() + limit_s
    while not (value := probe()):
        assert time.monotonic() < end_s, f"not within {limit_s:g} s: {what}"
        time.sleep(every_s)
    return value


def until(probe: Callable[[], T | None], limit_s: float = LIMIT_S, every_s: float = 0.01) -> T:
    """As `wait_until`, named by the source of `probe`."""
    end_s = time.monotonic() + limit_s
    while not (value := probe()):
        if time.monotonic() >= end_s:
            raise AssertionError(f"not within {limit_s:g} s: {inspect.getsource(probe).strip()}")
        time.sleep(every_s)
    return value
