"""The record of a pool's spot capacity, folded from sightings, oldest first.

A fold counts a fleet's months once for all jobs. Beside each count stands what the law of ages
expects of the same hours (hazard.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

# rate(a) = RATE * (a + YOUNG_H)^-SLOPE an hour at the age of a hours; see hazard.py.
RATE, SLOPE, YOUNG_H = 0.62, 0.66, 0.1
# What is first seen is some time old already: the offset with which the law fits machines that are
# launched at a random time of being up.
UNKNOWN_AGE_H = 0.3
# Between two sightings that lie further apart, nothing is known of what was in between; further
# than FORGET_S, it is not even known whether it is the same run.
GAP_S = 3600.0
FORGET_S = 6 * 3600.0


def rate(age_h: float) -> float:
    """Ends an hour of what is that old, by the law."""
    return float(RATE * (age_h + YOUNG_H) ** -SLOPE)


def expected(age_h: float, hours: float) -> float:
    """Ends that the law expects in the next `hours` of what is `age_h` old: the rate's integral."""
    power = 1 - SLOPE
    until, since = (age_h + hours + YOUNG_H) ** power, (age_h + YOUNG_H) ** power
    return float(RATE / power * (until - since))


@dataclass(frozen=True)
class Sighting:
    """Whether capacity was available or still held (`up`) at one moment."""

    at_s: float
    up: bool


@dataclass(frozen=True)
class PoolRecord:
    """The newest run, and the counts of all runs.

    `since_s` is when the newest run was first seen, `seen_s` the newest sighting. `fresh`: the
    sighting before it was the opposite, so the run began then; otherwise it may be older. `ends` of
    being up and `returns` from being down are counted, each beside the number that the law expects.
    """

    up: bool | None = None
    since_s: float = 0.0
    seen_s: float = 0.0
    fresh: bool = False
    ends: float = 0.0
    expected_ends: float = 0.0
    returns: float = 0.0
    expected_returns: float = 0.0

    def age_h(self, at_s: float) -> float:
        """Return the least age of the newest run."""
        return (at_s - self.since_s) / 3600 + (0.0 if self.fresh else UNKNOWN_AGE_H)

    def after(self, seen: Sighting) -> PoolRecord:
        """Return the record with one more sighting; an older one changes nothing."""
        if self.up is None:
            return replace(self, up=seen.up, since_s=seen.at_s, seen_s=seen.at_s)
        same, gap_s = seen.up == self.up, seen.at_s - self.seen_s
        if gap_s < 0 or (gap_s == 0 and same):
            return self
        if gap_s > GAP_S:
            known = same and gap_s <= FORGET_S
            since_s = self.since_s if known else seen.at_s
            fresh = self.fresh and known
            return replace(self, up=seen.up, since_s=since_s, seen_s=seen.at_s, fresh=fresh)
        by_law = expected(self.age_h(self.seen_s), gap_s / 3600)
        counted = self._counted(by_law, ended=not same)
        if same:
            return replace(counted, seen_s=seen.at_s)
        return replace(counted, up=seen.up, since_s=seen.at_s, seen_s=seen.at_s, fresh=True)

    def _counted(self, by_law: float, *, ended: bool) -> PoolRecord:
        if self.up:
            return replace(self, ends=self.ends + ended, expected_ends=self.expected_ends + by_law)
        return replace(
            self,
            returns=self.returns + ended,
            expected_returns=self.expected_returns + by_law,
        )


UNSEEN = PoolRecord()


def recorded(sightings: Iterable[Sighting], before: PoolRecord = UNSEEN) -> PoolRecord:
    """The record of sightings, oldest first, on top of what was known before."""
    record = before
    for seen in sightings:
        record = record.after(seen)
    return record
