"""What was seen of a pool's spot capacity, oldest first, and what is kept of it.

A `Record` is a fold over sightings, so that a fleet's months are counted once for all jobs. Hours
and ends are by the age of the run (of being up, or of being down) in which they were seen.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace

# Ages at which a class ends, in seconds: facts of spot traces tell runs by <0.5, 0.5-2, 2-6, 6+ h.
AGES_S = (1800.0, 7200.0, 21600.0)
CLASSES = len(AGES_S) + 1
# Between two sightings of the same that lie further apart nothing is known.
GAP_S = 2 * 3600.0


@dataclass(frozen=True)
class Sighting:
    """At that moment a gang could be had, or was still held (`up`), or neither."""

    at_s: float
    up: bool


@dataclass(frozen=True)
class Record:
    """The newest run, and what all of them come to.

    `since_s` is when the newest run was first seen, `seen_s` the newest sighting. `fresh`: the
    sighting before it said otherwise, no longer than GAP_S ago; else it may be older. `up_h` and
    `ends` are hours up and ends of it by age class, `down_h` and `returns` the same of being down.
    """

    up: bool | None = None
    since_s: float = 0.0
    seen_s: float = 0.0
    fresh: bool = False
    up_h: tuple[float, ...] = (0.0,) * CLASSES
    ends: tuple[float, ...] = (0.0,) * CLASSES
    down_h: tuple[float, ...] = (0.0,) * CLASSES
    returns: tuple[float, ...] = (0.0,) * CLASSES

    def after(self, seen: Sighting) -> Record:
        """With one sighting more; one that is older than the newest changes nothing."""
        if self.up is None:
            return replace(self, up=seen.up, since_s=seen.at_s, seen_s=seen.at_s)
        if seen.at_s < self.seen_s or (seen.at_s == self.seen_s and seen.up == self.up):
            return self
        gap_s = seen.at_s - self.seen_s
        if gap_s > GAP_S:
            same = seen.up == self.up
            since_s = self.since_s if same else seen.at_s
            return replace(self, up=seen.up, since_s=since_s, seen_s=seen.at_s, fresh=False)
        told = replace(self, seen_s=seen.at_s)
        if self.up:
            told = replace(told, up_h=self._spread(self.up_h, seen.at_s))
        else:
            told = replace(told, down_h=self._spread(self.down_h, seen.at_s))
        if seen.up == self.up:
            return told
        ended = bisect_right(AGES_S, seen.at_s - self.since_s)
        told = replace(told, up=seen.up, since_s=seen.at_s, fresh=True)
        if self.up:
            return replace(told, ends=_counted(self.ends, ended))
        return replace(told, returns=_counted(self.returns, ended))

    def _spread(self, hours: tuple[float, ...], until_s: float) -> tuple[float, ...]:
        """`hours` with the time from the newest sighting to `until_s`, by the age it had."""
        spread, edges = list(hours), (0.0, *AGES_S, float("inf"))
        young, old = self.seen_s - self.since_s, until_s - self.since_s
        for number in range(CLASSES):
            within = min(old, edges[number + 1]) - max(young, edges[number])
            spread[number] += max(0.0, within) / 3600
        return tuple(spread)


def _counted(counts: tuple[float, ...], number: int) -> tuple[float, ...]:
    return (*counts[:number], counts[number] + 1, *counts[number + 1 :])


UNSEEN = Record()


def recorded(sightings: Iterable[Sighting], before: Record = UNSEEN) -> Record:
    """The record of sightings, oldest first, on top of what was known before."""
    record = before
    for seen in sightings:
        record = record.after(seen)
    return record
