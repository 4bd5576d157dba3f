"""How fast this program's snapshots are staged and uploaded, as measured in its last saves.
Standard library only, Python >= 3.10."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

SAVES = 20  # that count; checkpoint sizes and networks change slowly
GUESS_S = 5.0  # for a save before any was measured; a notice asks for one, which measures
LEFT_AT_LEAST = 0.1  # of an upload's whole time, when it is already longer than expected
# Of an upload, what has to be put for its own pace to count alone. Its first parts say little: what
# it took to begin is in their time, and those beside them on their way are not in what is done.
SURE_AT = 0.5
_TICK_S = 1e-6


@dataclass(frozen=True)
class Sample:
    """One save: its bytes, the seconds that staging and uploading them took, and for how many of
    the first training stood."""

    size: int
    stage_s: float
    upload_s: float
    stall_s: float


class Rates:
    """Belongs to one thread. `size` is always bytes; an estimate is for a snapshot of that size."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=SAVES)

    def note(
        self, size: int, stage_s: float, upload_s: float, stall_s: float | None = None
    ) -> None:
        """A save was committed. Training stood for all of its staging, or for `stall_s` of it."""
        took = [stage_s, upload_s, stage_s if stall_s is None else stall_s]
        self._samples.append(Sample(size, *(max(seconds, _TICK_S) for seconds in took)))

    @property
    def measured(self) -> bool:
        return bool(self._samples)

    def stall_s(self, size: int) -> float:
        """What staging costs training in the middle of the saves."""
        return self._scaled(size, 0.5, [(one.size, one.stall_s) for one in self._samples])

    def upload_s(self, size: int) -> float:
        """The upload alone, as slow as the slowest tenth was."""
        if not self._samples:
            return GUESS_S
        return self._scaled(size, 0.9, [(one.size, one.upload_s) for one in self._samples])

    def save_s(self, size: int) -> float:
        """Staging and upload, both as slow as the slowest tenth was."""
        stage_s = self._scaled(size, 0.9, [(one.size, one.stage_s) for one in self._samples])
        return stage_s + self.upload_s(size)

    def left_s(self, size: int, elapsed_s: float, done: int = 0) -> float:
        """What is left of an upload that has run for `elapsed_s`, with `done` of its bytes put, if
        that is known: by the pace that it has, where that is below the measured one, as far as
        enough is done to tell."""
        whole_s = self.upload_s(size)
        if done > 0 and elapsed_s > 0:
            sure = min(done / size / SURE_AT, 1.0)
            slower_s = max(elapsed_s * size / done - whole_s, 0.0)
            return (whole_s + sure * slower_s) * (size - done) / size
        return max(whole_s - elapsed_s, LEFT_AT_LEAST * whole_s)

    @staticmethod
    def _scaled(size: int, share: float, took: Iterable[tuple[int, float]]) -> float:
        """The time in which `share` of the saves would have been done with `size` bytes."""
        times = sorted(seconds * (size / was if was else 1.0) for was, seconds in took)
        return times[math.ceil(share * len(times)) - 1] if times else 0.0
