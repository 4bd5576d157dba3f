"""Staging and upload speeds of this program's snapshots, measured in its last saves.

Standard library only, Python >= 3.10.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

SAVES = 20  # newest saves that count; sizes and networks change slowly
DEFAULT_UPLOAD_S = 5.0  # before any save was measured
MIN_REMAINING_SHARE = 0.1  # of the expected time, if it is exceeded already
# Share of an upload that must be done before its own speed counts fully. Early on, the speed is too
# low: it includes the start, and parts still on their way are not counted.
CONFIDENT_SHARE = 0.5
_TICK_S = 1e-6


@dataclass(frozen=True)
class Sample:
    """One save: bytes, and seconds of staging, of the upload and of the stall of training."""

    size: int
    stage_s: float
    upload_s: float
    stall_s: float


class Rates:
    """Used by one thread. `size` is in bytes; an estimate is for a snapshot of that size."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=SAVES)

    def add(self, size: int, stage_s: float, upload_s: float, stall_s: float | None = None) -> None:
        """Add a committed save; `stall_s` is by default the whole staging time."""
        times = [stage_s, upload_s, stage_s if stall_s is None else stall_s]
        self._samples.append(Sample(size, *(max(seconds, _TICK_S) for seconds in times)))

    @property
    def measured(self) -> bool:
        return bool(self._samples)

    def stall_s(self, size: int) -> float:
        """Return the median stall of training."""
        return self._scaled(size, 0.5, [(sample.size, sample.stall_s) for sample in self._samples])

    def upload_s(self, size: int) -> float:
        """Return the 90th percentile of the upload time."""
        if not self._samples:
            return DEFAULT_UPLOAD_S
        return self._scaled(size, 0.9, [(sample.size, sample.upload_s) for sample in self._samples])

    def save_s(self, size: int) -> float:
        """Return the 90th percentile of staging plus that of the upload."""
        stage_s = self._scaled(
            size, 0.9, [(sample.size, sample.stage_s) for sample in self._samples]
        )
        return stage_s + self.upload_s(size)

    def remaining_s(self, size: int, elapsed_s: float, done: int = 0) -> float:
        """Return the remaining time of an upload that has run for `elapsed_s`.

        `done` is the number of bytes uploaded, if known. An upload slower than the measured ones is
        extrapolated at its own speed, weighted by the share that is done.
        """
        expected_s = self.upload_s(size)
        if done > 0 and elapsed_s > 0:
            confidence = min(done / size / CONFIDENT_SHARE, 1.0)
            slower_s = max(elapsed_s * size / done - expected_s, 0.0)
            return (expected_s + confidence * slower_s) * (size - done) / size
        return max(expected_s - elapsed_s, MIN_REMAINING_SHARE * expected_s)

    @staticmethod
    def _scaled(size: int, share: float, measured: Iterable[tuple[int, float]]) -> float:
        """Return the time in which `share` of the saves would have finished with `size` bytes."""
        times = sorted(
            seconds * (size / sample_size if sample_size else 1.0)
            for sample_size, seconds in measured
        )
        return times[math.ceil(share * len(times)) - 1] if times else 0.0
