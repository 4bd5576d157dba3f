"""Compute how many machines to commit to (reservation, savings plan), next to spot.

A committed machine is paid for every hour, used or not. It takes work that would run on-demand, and
then work that would run on spot: a commitment makes no spot machine cheaper, it replaces it. Never
more than were in use in every observed hour, because more would be idle in some.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from spotd.domain.units import US_PER_H

GUIDES = (0.5, 0.7)  # shares of the baseline that guides commit to, whatever the prices
FEW_HOURS = 28 * 24  # fewer do not show the effect of weekends and ends of months


@dataclass(frozen=True)
class HourlyUse:
    """Machines in use in one hour, on the average of that hour."""

    on_demand: float
    spot: float

    @property
    def both(self) -> float:
        return self.on_demand + self.spot


@dataclass(frozen=True)
class Prices:
    """USD per machine-hour; `spot` includes the cost of interruptions."""

    on_demand: float
    spot: float
    committed: float


@dataclass(frozen=True)
class MonthlyBill:
    """The cost of all hours with that many machines committed; `idle_h` of these were unused."""

    machines: int
    committed_usd: float
    on_demand_h: float
    on_demand_usd: float
    spot_h: float
    spot_usd: float
    idle_h: float

    @property
    def usd(self) -> float:
        return self.committed_usd + self.on_demand_usd + self.spot_usd


@dataclass
class Pool:
    """The use of one type of machine in one place, hour by hour."""

    hours: list[HourlyUse] = field(default_factory=list)

    @property
    def least(self) -> float:
        """Number of machines that were in use in every hour."""
        return min((hour.both for hour in self.hours), default=0.0)

    @property
    def most(self) -> float:
        return max((hour.both for hour in self.hours), default=0.0)

    @property
    def mean(self) -> float:
        return sum(hour.both for hour in self.hours) / len(self.hours) if self.hours else 0.0

    @property
    def most_machines(self) -> int:
        """The maximum number of machines to commit to."""
        return int(self.least + 1e-9)


def bill(pool: Pool, prices: Prices, machines: int) -> MonthlyBill:
    """Return the bill with that many committed machines, which take expensive work first."""
    on_demand_h = spot_h = idle_h = 0.0
    for hour in pool.hours:
        left = machines - hour.on_demand
        on_demand_h += max(-left, 0.0)
        spot_h += hour.spot - min(max(left, 0.0), hour.spot)
        idle_h += max(left - hour.spot, 0.0)
    return MonthlyBill(
        machines=machines,
        committed_usd=machines * len(pool.hours) * prices.committed,
        on_demand_h=on_demand_h,
        on_demand_usd=on_demand_h * prices.on_demand,
        spot_h=spot_h,
        spot_usd=spot_h * prices.spot,
        idle_h=idle_h,
    )


def marginal_value(pool: Pool, prices: Prices, nth: int) -> float:
    """Return the hourly USD that the nth committed machine replaces: it pays at a lower price.

    For a machine that is always used, so `nth` is at most `most_machines`.
    """
    dear_h = sum(min(max(hour.on_demand - nth + 1, 0.0), 1.0) for hour in pool.hours)
    share = dear_h / len(pool.hours)
    return share * prices.on_demand + (1 - share) * prices.spot


def advised(pool: Pool, prices: Prices) -> int:
    """Return the number that costs least; among several, the smallest.

    Each further machine finds less work that would run on-demand. If spot is cheaper it is worth
    less than the one before it, and the last one that pays is found by bisection; otherwise it is
    worth more, and it is all or none.
    """
    most = pool.most_machines
    if prices.spot > prices.on_demand:
        none_committed, all_committed = (bill(pool, prices, count).usd for count in (0, most))
        return most if all_committed < none_committed else 0
    low, high = 0, most  # `low` pays; above `high` none does
    while low < high:
        middle = (low + high + 1) // 2
        if marginal_value(pool, prices, middle) > prices.committed:
            low = middle
        else:
            high = middle - 1
    return low


def everything_on_demand(pool: Pool, prices: Prices) -> float:
    """Return the USD of the same machine-hours on-demand, with no commitment."""
    return sum(hour.both for hour in pool.hours) * prices.on_demand


def by_hour(
    stretches: Iterable[tuple[int, int, bool]], since_us: int, until_us: int
) -> list[HourlyUse]:
    """Return the use in each whole hour (UTC) in between.

    Machines are (from, until, whether on spot), in microseconds.
    """
    first, last = -(-since_us // US_PER_H), until_us // US_PER_H
    used_us = [[0, 0] for _ in range(max(last - first, 0))]
    for start_us, end_us, spot in stretches:
        begin, end = max(start_us, first * US_PER_H), min(end_us, last * US_PER_H)
        for hour in range(begin // US_PER_H, -(-end // US_PER_H)):
            part = min(end, (hour + 1) * US_PER_H) - max(begin, hour * US_PER_H)
            used_us[hour - first][spot] += max(part, 0)
    return [HourlyUse(dear / US_PER_H, cheap / US_PER_H) for dear, cheap in used_us]


def advice_data(pool: Pool, prices: Prices) -> dict[str, object]:
    """Return the plan that costs least as JSON, with the actual use and what guides say."""
    max_machines, best = pool.most_machines, advised(pool, prices)
    uncommitted = bill(pool, prices, 0)
    plans: list[tuple[str, int]] = [("none", 0)]
    plans += [(f"{part * 100:.0f} % of the baseline", int(part * max_machines)) for part in GUIDES]
    plans += [("all of the baseline", max_machines), ("advised", best)]
    chosen = bill(pool, prices, best)
    machine_h = sum(hour.both for hour in pool.hours)
    return {
        "hours": len(pool.hours),
        "few": len(pool.hours) < FEW_HOURS,
        "machines": {"least": pool.least, "mean": pool.mean, "most": pool.most},
        "prices": vars(prices) | {"discount": 1 - prices.committed / prices.on_demand},
        "advised": best,
        "of_baseline": best / max_machines if max_machines else None,
        "of_mean": best / pool.mean if pool.mean else None,
        "left_to_spot": chosen.spot_h / machine_h if machine_h else None,
        "worth_first": marginal_value(pool, prices, 1) if max_machines else None,
        "worth_last": marginal_value(pool, prices, max_machines) if max_machines else None,
        "all_on_demand_usd": round(everything_on_demand(pool, prices), 6),
        "plans": [_plan(name, bill(pool, prices, count), uncommitted) for name, count in plans],
    }


def _plan(name: str, plan_bill: MonthlyBill, uncommitted: MonthlyBill) -> dict[str, object]:
    return {
        "name": name,
        **_rounded(plan_bill),
        "saved_usd": round(uncommitted.usd - plan_bill.usd, 6),
    }


def _rounded(plan_bill: MonthlyBill) -> dict[str, object]:
    values = {name: round(value, 6) for name, value in vars(plan_bill).items()}
    return {**values, "machines": plan_bill.machines, "usd": round(plan_bill.usd, 6)}


def mean_price(priced: Sequence[tuple[float, int]]) -> float:
    """Return the mean of (hours, micro-USD per hour) by hours, in USD; 0.0 without any."""
    known = [(hours, price) for hours, price in priced if price and hours > 0]
    total_h = sum(hours for hours, _ in known)
    return sum(hours * price for hours, price in known) / total_h / 1e6 if total_h else 0.0
