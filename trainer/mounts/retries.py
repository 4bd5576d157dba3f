"""Retry a call while a store is unavailable."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from providers.stores.base import StoreUnavailableError

T = TypeVar("T")


def with_retries(
    call: Callable[[], T], sleep: Callable[[float], None], attempts: int, pause_s: float
) -> T:
    """Return `call()`, retried on StoreUnavailableError up to `attempts` times, `pause_s` apart.

    Raises the last error.
    """
    try:
        return call()
    except StoreUnavailableError:
        if attempts <= 1:
            raise
    sleep(pause_s)
    return with_retries(call, sleep, attempts - 1, pause_s)
