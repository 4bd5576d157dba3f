"""The hazard of spot capacity: how soon it ends and returns, falling with its age.

One law holds for every pool, and each pool has a scale relative to it. The law is a power of the
age, rate(a) = 0.62 * (a + 0.1)^-0.66 per hour, a in hours. It was fitted to the ends of being up
and of being down in seven recorded traces of AWS and GCP at once (docs/placement.md has the table).
SkyNomad (NSDI'27, arXiv 2601.06520) also found the slope -0.66 for H100 machines.

A pool's scale is the mean of a Gamma posterior: (W + events) / (W + events expected by the law).
The prior of a pool is what all pools of the situation say together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp

from spotd.planner.spot_policy.pool_record import UNKNOWN_AGE_H, PoolRecord, expected

# Events that the prior is worth: of one pool against the fleet, of the fleet against the law.
POOL_EVENTS, FLEET_EVENTS = 2.0, 20.0
# No pool says more than this many events of the fleet: one that comes and goes all day is not all.
_HEARD = 4.0
# Of a pool of which nothing is known: the mean of the recorded traces' zones.
AVAILABLE = 0.6
# A pool that was taken away less than this long ago goes again more easily, and so, for half of it,
# do others of its region: 2.1 and 3.0 times more within half an hour in traces of AWS and GCP.
NEAR_H, LIFT = 1.0, 2.0


@dataclass(frozen=True)
class HazardScale:
    """How a pool compares to the law; 2 is twice as often.

    `ends` is of being up, `returns` of being down.
    """

    ends: float
    returns: float

    @property
    def available(self) -> float:
        """Return the long-run share of time in which capacity is available."""
        up = AVAILABLE * self.returns
        return up / (up + (1 - AVAILABLE) * self.ends)


def fleet_scale(records: Iterable[PoolRecord]) -> HazardScale:
    """Return the scale of all pools together."""
    all_records = list(records)
    return HazardScale(
        ends=_together((r.ends, r.expected_ends) for r in all_records),
        returns=_together((r.returns, r.expected_returns) for r in all_records),
    )


def _together(counted: Iterable[tuple[float, float]]) -> float:
    events = foreseen = FLEET_EVENTS
    for seen, by_law in counted:
        weight = min(1.0, _HEARD / seen) if seen else 1.0
        events += seen * weight
        foreseen += by_law * weight
    return events / foreseen


def scale(record: PoolRecord, fleet: HazardScale) -> HazardScale:
    """Return the pool's own scale, drawn to the fleet's while little was seen."""
    weight = POOL_EVENTS
    return HazardScale(
        ends=(weight * fleet.ends + record.ends) / (weight + record.expected_ends),
        returns=(weight * fleet.returns + record.returns) / (weight + record.expected_returns),
    )


def found_age_h(record: PoolRecord, now_s: float) -> float:
    """Return the age that a run of being up would have if capacity were found now."""
    if record.up is None:
        return UNKNOWN_AGE_H
    gap_h = (now_s - record.seen_s) / 3600
    if not record.up:
        return min(UNKNOWN_AGE_H, gap_h / 2)
    age_h = record.age_h(now_s)
    return age_h if gap_h <= 1 else min(age_h, UNKNOWN_AGE_H + gap_h / 2)


def lifted(
    records: dict[str, PoolRecord], regions: dict[str, str], now_s: float
) -> dict[str, float]:
    """Return by pool how much its hazard is raised by recent ends nearby."""
    factors = dict.fromkeys(records, 1.0)
    near: set[str] = set()
    for key, record in records.items():
        if record.up is not False or not record.fresh:
            continue
        ago_h = (now_s - record.since_s) / 3600
        if ago_h <= NEAR_H:
            factors[key] = LIFT
        if ago_h <= NEAR_H / 2:
            near.add(regions[key])
    factors.update({key: LIFT for key in factors if regions[key] in near})
    return factors


def ends_within(age_h: float, hours: float, times: float) -> float:
    """The chance that what is `age_h` old ends within `hours`; `times` the law."""
    return 1 - exp(-expected(age_h, hours) * times)
