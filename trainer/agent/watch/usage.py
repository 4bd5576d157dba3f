"""How well the machine is used, as measured here: what its GPUs do, and what its program waits for.

The program reports with its steps how long it waited for data (`data_s`) and for checkpoints
(`save_s`); nvidia-smi says how busy the GPUs are. Sums of a window go out with the next report of
steps. What nobody measured is not in them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

WINDOW_S = 300.0
_PARTS = ("busy_s", "data_s", "save_s")


class Usage:
    """Thread-safe; `now` is monotonic seconds. The first window begins with the first report: boot
    and set-up are no part of it."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._lock = threading.Lock()
        self._window_s = window_s
        self._begin(None)

    def _begin(self, now: float | None) -> None:
        self._since = now
        self._sums: dict[str, float] = {}
        self._gpu: list[float] = []

    def look(self, utilisation: Sequence[float]) -> None:
        """How busy each GPU was, as a fraction, at one look."""
        with self._lock:
            self._gpu += utilisation

    def add(self, data: Mapping[str, Any], now: float) -> dict[str, Any]:
        """A report of steps; with the window's sums as `usage`, if that is over now."""
        with self._lock:
            if self._since is None:
                self._begin(now)
                return dict(data)
            for part in _PARTS:
                value = data.get(part)
                if isinstance(value, int | float) and value >= 0:
                    self._sums[part] = self._sums.get(part, 0.0) + value
            if now - self._since < self._window_s:
                return dict(data)
            usage = {part: round(value, 3) for part, value in self._sums.items()}
            usage["window_s"] = round(now - self._since, 3)
            if self._gpu:
                usage["gpu"] = round(sum(self._gpu) / len(self._gpu), 4)
            self._begin(now)
            return {**data, "usage": usage}

    def begin(self) -> None:
        """Another program begins."""
        with self._lock:
            self._begin(None)
