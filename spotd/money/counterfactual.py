"""Compute the cost of the same work on-demand; a saving never exceeds the price discount.

On-demand pays only for steps that survive, with their own saves, one start, and the same storage,
and nothing that interruptions cost. On-demand machines need no second cloud, so there is no egress,
and no control box.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spotd.money.hour_breakdown import TimeUse
from spotd.money.units import NodeHours

AS_IS, BEST = "same provider", "cheapest anywhere"
SAME, NEEDED, MIXED = "same hours", "needed hours", "needed hours, or the same where not known"


@dataclass(frozen=True)
class PaidTotals:
    """Sums over everything paid for, without prepaid hours.

    `uses` is machine time by use in microseconds, `start_us` the time of one start of all the job's
    machines.
    """

    compute_microusd: int
    storage_microusd: int
    other_microusd: int
    list_microusd: int
    best_microusd: int
    uses: Mapping[TimeUse, int]
    start_us: int = 0

    @property
    def total_microusd(self) -> int:
        return self.compute_microusd + self.storage_microusd + self.other_microusd

    @property
    def billed_us(self) -> int:
        return sum(self.uses.values())


@dataclass(frozen=True)
class Counterfactual:
    """One counterfactual.

    `basis` is NEEDED (the hours that on-demand would have needed), SAME (the same hours, an upper
    bound) or MIXED, for a sum of both. `priced_microusd` is the on-demand price of the same hours,
    `spent_microusd` what was paid for them, `paid_microusd` that with everything on top.
    """

    name: str
    basis: str
    hours: NodeHours
    compute_microusd: int
    storage_microusd: int
    priced_microusd: int
    spent_microusd: int
    paid_microusd: int

    @property
    def total_microusd(self) -> int:
        return self.compute_microusd + self.storage_microusd

    @property
    def discount(self) -> float | None:
        """Return how far the same hours were below the on-demand price; None if unknown."""
        return 1 - self.spent_microusd / self.priced_microusd if self.priced_microusd else None

    @property
    def bound(self) -> float | None:
        """The most that can have been saved, at most the discount; None if no price is known."""
        if self.discount is None or not self.total_microusd:
            return None
        return min(1 - self.paid_microusd / self.total_microusd, self.discount)

    @property
    def saving(self) -> float | None:
        """The fraction that was saved. Only the hours that on-demand would have needed tell it."""
        return self.bound if self.basis == NEEDED else None


def counterfactuals(paid: PaidTotals) -> list[Counterfactual]:
    """Return the counterfactuals in the same places, and in the cheapest place with such machines.

    For the same hours, and if steps were reported, for the hours that on-demand would have needed.
    Without those whose price is unknown.
    """
    results = []
    for name, priced in ((AS_IS, paid.list_microusd), (BEST, paid.best_microusd)):
        for basis, hours_us in ((SAME, paid.billed_us), (NEEDED, needed_us(paid))):
            if priced and hours_us is not None:
                results.append(_instead(name, basis, paid, priced, hours_us))
    return results


def needed_us(paid: PaidTotals) -> int | None:
    """Return the machine time that on-demand would have needed, at most the billed time.

    None if no steps were reported.
    """
    useful = paid.uses.get(TimeUse.USEFUL, 0)
    if not useful:
        return None
    worked = useful + paid.uses.get(TimeUse.REPLAYED, 0)
    saves = paid.uses.get(TimeUse.CHECKPOINT, 0) * useful // worked
    return min(useful + saves + paid.start_us, paid.billed_us)


def _instead(name: str, basis: str, paid: PaidTotals, priced: int, hours_us: int) -> Counterfactual:
    compute = priced * hours_us // paid.billed_us if paid.billed_us else 0
    spent, total = paid.compute_microusd, paid.total_microusd
    storage = paid.storage_microusd
    return Counterfactual(name, basis, NodeHours(hours_us), compute, storage, priced, spent, total)


def known_together(known: Sequence[Counterfactual]) -> Counterfactual | None:
    """Return the sum of counterfactuals whose savings are known; None without any."""
    return _sum(AS_IS, NEEDED, known) if known else None


def added(jobs: Sequence[Sequence[Counterfactual]]) -> list[Counterfactual]:
    """Return the sums over jobs whose on-demand prices are known.

    For the same hours, and for each job's needed hours as far as known.
    """
    sums = []
    for name in (AS_IS, BEST):
        for basis in (SAME, NEEDED):
            best = [_closest(job, name, basis) for job in jobs]
            known = [item for item in best if item is not None and item.priced_microusd]
            if not known:
                continue
            bases = {item.basis for item in known}
            if basis == NEEDED and NEEDED not in bases:
                continue
            sums.append(_sum(name, basis if len(bases) == 1 else MIXED, known))
    return sums


def _closest(job: Sequence[Counterfactual], name: str, basis: str) -> Counterfactual | None:
    same_name = [item for item in job if item.name == name]
    exact = [item for item in same_name if item.basis == basis]
    return next(iter(exact or same_name), None)


def _sum(name: str, basis: str, known: Sequence[Counterfactual]) -> Counterfactual:
    return Counterfactual(
        name,
        basis,
        NodeHours(sum(item.hours.us for item in known)),
        sum(item.compute_microusd for item in known),
        sum(item.storage_microusd for item in known),
        sum(item.priced_microusd for item in known),
        sum(item.spent_microusd for item in known),
        sum(item.paid_microusd for item in known),
    )
