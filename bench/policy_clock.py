"""The daemon's policy where it knows the time of day and has watched the pools before a case began.

`--clock` of bench/policy.py scores it twice: with the term for the hour of the day and without. For
both each pool's record is of all ticks of the trace before the case's first, as of a daemon that
looked at every zone in each of them, which no daemon does: what it knows is the most that it could.
Nothing of the case itself is told ahead, and what is learned of the hours is not learned on within
it. The time is that of the trace's file; where that is known only by its date (AWS 2022), or is
another one for some of the zones (M4's pairing), hours are shifted, and what comes with each day is
learned all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from policy_ours import Ours

from spotd.decide.policy import Record, Sighting
from spotd.decide.policy.hours import UNKNOWN, Hours, learned

WITHOUT, WITH = "spotd, watched, without the hour", "spotd, watched"
COMPOSITE = "composite"  # M4, whose zones of AWS have no time of their own
ITS_CLOCK = "gcp_2025_h100x16"


class Watched(Ours):
    """`cases` are those that it is run on, in their order."""

    def __init__(self, lost_s: float, *, hours: bool) -> None:
        super().__init__(lost_s, WITH if hours else WITHOUT)
        self.with_hours = hours
        self.cases: Sequence[Mapping[str, Any]] = ()
        self.begins_s, self.number = 0.0, 0

    def play(self, cases: Sequence[Mapping[str, Any]], begins_s: float) -> None:
        """What it is run on next; `begins_s`: when their trace begins, in seconds since 1970."""
        self.cases, self.begins_s, self.number = cases, begins_s, 0

    def reset(self, view: Any) -> None:
        super().reset(view)
        case = self.cases[self.number]
        self.number += 1
        self.origin_s = self.begins_s + case["start"] * view.gap
        told = [
            _watched(self.begins_s, view.gap, bytes(row[: case["start"]])) for row in case["avail"]
        ]
        self.records = [record for record, _ in told]
        self.hours = [hours if self.with_hours else UNKNOWN for _, hours in told]


def begins_s(file: Path) -> float:
    """When a trace's first tick was, as it says. Raises KeyError where it does not."""
    with np.load(file, allow_pickle=False) as found:
        return float(np.datetime64(str(found["start"]), "s").astype(float))


def trace_of(traces: Path, part: str, suite: str) -> Path:
    """The file that has the clock of cases whose `suite` is that."""
    return traces / "data" / part / f"{ITS_CLOCK if suite == COMPOSITE else suite}.npz"


@lru_cache(maxsize=4096)
def _watched(began_s: float, gap_s: float, bits: bytes) -> tuple[Record, Hours]:
    """Of one zone, up to a case's first tick."""
    return learned(Sighting(began_s + n * gap_s, bool(up)) for n, up in enumerate(bits))
