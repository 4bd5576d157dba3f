"""Asking a store again that is away for a moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from providers.stores.base import StoreUnavailableError

T = TypeVar("T")


def tried(ask: Callable[[], T], pause: Callable[[float], None], tries: int, pause_s: float) -> T:
    """`ask()`, up to `tries` times with a pause in between. Raises what the last one raises."""
    try:
        return ask()
    except StoreUnavailableError:
        if tries <= 1:
            raise
    pause(pause_s)
    return tried(ask, pause, tries - 1, pause_s)
