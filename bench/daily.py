"""How much more easily spot goes, and how much sooner it comes back, at some hours of the day: for
bench/hours.py. The policy has no such term; docs/measurements.md says what came of one.

A factor for each hour (UTC), by which the policy's law of ages is multiplied, learned from what was
seen of one pool: the mean of a Gamma posterior around 1,

    (WORTH + events) / (WORTH + events expected at their ages, at the pool's own mean)

of an hour and, by half, of the hours beside it. The days speak for it where each one, foretold from
those before it, is foretold better with the factors than without: by MARGIN nats of log score over
DAYS days or more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log

from spotd.planner.spot_policy import UNSEEN, Sighting

HOURS = 24
# Events that "this hour is as all are" is worth: with half of it some recorded traces were foretold
# worse out of time than without hours, with twice as much most of them gained less.
WORTH = 12.0
# What a pool's own mean is drawn to 1 by, in events: as POOL_EVENTS of the policy.
OWN_EVENTS = 2.0
DAYS, MARGIN = 7, 3.0  # each day of a week once; e^3 is 20
_DAY_S = 86_400.0


@dataclass(frozen=True)
class Day:
    """By hour: events, and how many the law expects at their ages."""

    events: list[float]
    by_law: list[float]


@dataclass(frozen=True)
class InTurn:
    """By how many nats `days` were foretold better, each from those before it."""

    days: int
    nats: float

    @property
    def speaks(self) -> bool:
        return self.days >= DAYS and self.nats >= MARGIN


def counted(sightings: Iterable[Sighting]) -> tuple[Mapping[int, Day], Mapping[int, Day]]:
    """By day since 1970, of sightings, oldest first: the ends of being up and of being down."""
    record = UNSEEN
    ends: dict[int, Day] = {}
    returns: dict[int, Day] = {}
    for seen in sightings:
        after = record.after(seen)
        by_law = after.expected_ends - record.expected_ends
        if by_law > 0:
            _count(ends, record.seen_s, seen.at_s, after.ends - record.ends, by_law)
        by_law = after.expected_returns - record.expected_returns
        if by_law > 0:
            _count(returns, record.seen_s, seen.at_s, after.returns - record.returns, by_law)
        record = after
    return ends, returns


def _count(
    days: dict[int, Day], since_s: float, until_s: float, events: float, by_law: float
) -> None:
    day, within_s = divmod((since_s + until_s) / 2, _DAY_S)
    told = days.get(int(day))
    if told is None:
        told = days[int(day)] = Day([0.0] * HOURS, [0.0] * HOURS)
    hour = int(within_s / 3600)
    told.events[hour] += events
    told.by_law[hour] += by_law


def foretold(days: Mapping[int, Day]) -> InTurn:
    """How well each was, by those before it."""
    before = Day([0.0] * HOURS, [0.0] * HOURS)
    nats, number = 0.0, 0
    for _, day in sorted(days.items()):
        if any(before.by_law):
            nats += gain(day, times(before), factors(before))
            number += 1
        before = together((before, day))
    return InTurn(number, nats)


def together(days: Iterable[Day]) -> Day:
    events, by_law = [0.0] * HOURS, [0.0] * HOURS
    for day in days:
        events = [a + b for a, b in zip(events, day.events, strict=True)]
        by_law = [a + b for a, b in zip(by_law, day.by_law, strict=True)]
    return Day(events, by_law)


def times(day: Day) -> float:
    """How it compares to the law, all hours together."""
    return (OWN_EVENTS + sum(day.events)) / (OWN_EVENTS + sum(day.by_law))


def factors(day: Day) -> tuple[float, ...]:
    own, events, by_law = times(day), _beside(day.events), _beside(day.by_law)
    return tuple(
        (WORTH + seen) / (WORTH + own * told) for seen, told in zip(events, by_law, strict=True)
    )


def _beside(values: Sequence[float]) -> list[float]:
    """Each hour's with half of those before and after it."""
    return [values[h] + (values[h - 1] + values[(h + 1) % HOURS]) / 2 for h in range(HOURS)]


def gain(day: Day, own: float, by_hour: Sequence[float]) -> float:
    """Nats by which a Poisson process with these factors foretells the day better than without."""
    told = zip(day.events, day.by_law, by_hour, strict=True)
    return sum(seen * log(factor) - own * law * (factor - 1) for seen, law, factor in told)
