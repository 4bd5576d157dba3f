"""Measure how well the machine is used: GPU utilisation, and the program's waiting times.

The program reports with its steps how long it waited for data (`data_s`) and checkpoints
(`save_s`); nvidia-smi reports the GPUs' utilisation. The sums of a window go out with the next step
report. Values that were not measured are left out.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

WINDOW_S = 300.0
_PARTS = ("busy_s", "data_s", "save_s")


class Usage:
    """Thread-safe; `now` is in monotonic seconds. The first window starts with the first report, so
    that boot and set-up are not included."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._lock = threading.Lock()
        self._window_s = window_s
        self._begin(None)

    def _begin(self, now: float | None) -> None:
        self._since = now
        self._sums: dict[str, float] = {}
        self._gpu: list[float] = []

    def add_gpu_utilisation(self, utilisation: Sequence[float]) -> None:
        """Add each GPU's utilisation at one moment, as fractions."""
        with self._lock:
            self._gpu += utilisation

    def add(self, data: Mapping[str, Any], now: float) -> dict[str, Any]:
        """Return the step report, with the window's sums as `usage` if the window is over."""
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
        """Start over for a new program."""
        with self._lock:
            self._begin(None)
