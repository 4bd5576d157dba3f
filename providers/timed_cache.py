"""Values of a slow source, each read again when its time is over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class TimedCache:
    """Values by key. Thread-safe; threads that find no valid value at the same time all read it."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._values: dict[Hashable, tuple[float, Any]] = {}

    def get(self, key: Hashable, read: Callable[[], T], ttl_s: float | Callable[[T], float]) -> T:
        """Return the value of `key`, from `read()` unless that was called less than `ttl_s` ago.

        An error of `read` is raised and not remembered.
        """
        now_s = self._monotonic_s()
        with self._lock:
            until_s, value = self._values.get(key, (float("-inf"), None))
        if now_s < until_s:
            return value  # type: ignore[no-any-return]
        fresh = read()
        valid_s = ttl_s(fresh) if callable(ttl_s) else ttl_s
        with self._lock:
            self._values[key] = (now_s + valid_s, fresh)
        return fresh
