"""How much more easily spot goes, and how much sooner it comes back, at some hours of the day.

A factor for each hour (UTC), by which the law of hazard.py is multiplied, learned from what the
fleet saw of that pool alone: the mean of a Gamma posterior around 1,

    (WORTH + events) / (WORTH + events expected at their ages, at the pool's own mean)

of an hour and, by half, of the hours beside it. It is used only where it would have paid: each day
is foretold from the days before it, with the factors and without, and where the sum of the
differences in log score (nats) reaches MARGIN over DAYS days or more, the days speak twenty to one
for it. Else all hours are alike, as they are for whoever has seen little. What it brings is in
docs/placement.md, and that days of the week brought nothing.

Where it is used, it is in all that the policy reckons with: a run and a wait hour by hour
(outlook.py), and the table of what comes after them (value.py), in which each step has its hour.
With the first two alone, on-demand would be priced as if spot came back as on any hour, and a pool
with a strong day would do worse with its hours known than without.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, log

from spotd.decide.policy.record import UNSEEN, Record, Sighting

HOURS = 24
# Events that "this hour is as all are" is worth: with half of it some recorded traces were foretold
# worse out of time than without hours, with twice as much most of them gained less.
WORTH = 12.0
# What a pool's own mean is drawn to 1 by, in events: as hazard.POOL_EVENTS.
OWN_EVENTS = 2.0
DAYS, MARGIN = 7, 3.0  # each day of a week once; e^3 is 20
# To what the hours of a table are rounded, and its factors, as powers of that.
GRAIN_H, GRAIN = 3, 1.1
_DAY_S, _EXACT = 86_400.0, 1e-9

ALIKE = (1.0,) * HOURS


@dataclass(frozen=True)
class Day:
    """By hour: events, and how many the law expects at their ages."""

    events: list[float]
    by_law: list[float]


@dataclass(frozen=True)
class Daily:
    """`factors` by hour of the day, and how well they foretold: by `nats` of log score better than
    without them, over `days`."""

    factors: tuple[float, ...] = ALIKE
    days: int = 0
    nats: float = 0.0

    @property
    def used(self) -> bool:
        return self.days >= DAYS and self.nats >= MARGIN

    def over(self, at_h: float, hours: float) -> float:
        """The mean factor of `hours` from then on, in hours since 1970; 1 where it is not used."""
        return mean(self.factors, at_h, hours) if self.used else 1.0


@dataclass(frozen=True)
class Hours:
    """Of a pool: its ends of being up, and its returns."""

    ends: Daily = Daily()
    returns: Daily = Daily()

    @property
    def used(self) -> bool:
        return self.ends.used or self.returns.used


UNKNOWN = Hours()


def mean(factors: Sequence[float], at_h: float, hours: float) -> float:
    """Of a factor for each hour that comes round again, over `hours` from `at_h` on."""
    number, since_h = len(factors), at_h
    if hours <= _EXACT or number == 1:
        return factors[floor(at_h) % number]
    total = 0.0
    while since_h < at_h + hours - _EXACT:
        hour = floor(since_h + _EXACT)
        until_h = min(hour + 1, at_h + hours)
        total += (until_h - since_h) * factors[hour % number]
        since_h = until_h
    return total / hours


def backwards(pools: Iterable[tuple[float, Daily]], until_h: float) -> tuple[float, ...]:
    """The mean factor of those, each with its weight, in the last hour before then, the one before
    that, and so on for a day; one of 1 where none is used. Rounded, for a table to be shared."""
    told = list(pools)
    total = sum(weight for weight, _ in told)
    if total <= 0 or not any(daily.used for _, daily in told):
        return (1.0,)
    known = [(weight, daily.factors) for weight, daily in told if daily.used]
    others = sum(weight for weight, daily in told if not daily.used)
    last = round(until_h / GRAIN_H) * GRAIN_H
    found = []
    for back in range(1, HOURS + 1):
        hour = (last - back) % HOURS
        factor = (others + sum(weight * factors[hour] for weight, factors in known)) / total
        found.append(float(GRAIN ** round(log(factor) / log(GRAIN))))
    return tuple(found)


def learned(sightings: Iterable[Sighting]) -> tuple[Record, Hours]:
    """The record of sightings, oldest first, and what they say of the hours: nothing where that is
    not to be used."""
    record, ends, returns = counted(sightings)
    told = [daily if daily.used else Daily() for daily in map(foretold, (ends, returns))]
    return record, Hours(*told)


def counted(
    sightings: Iterable[Sighting],
) -> tuple[Record, Mapping[int, Day], Mapping[int, Day]]:
    """The record, and by day since 1970 the ends of being up and those of being down."""
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
    return record, ends, returns


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


def foretold(days: Mapping[int, Day]) -> Daily:
    """What all days say, and how well each was foretold by those before it."""
    before = Day([0.0] * HOURS, [0.0] * HOURS)
    nats, number = 0.0, 0
    for _, day in sorted(days.items()):
        if any(before.by_law):
            nats += gain(day, times(before), factors(before))
            number += 1
        before = together((before, day))
    return Daily(factors(before), number, nats)


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
