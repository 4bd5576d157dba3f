"""What the same work would have cost on demand; a saving is never more than the price discount.

On demand, only the steps that survive are paid, with their own saves, one start, and the same
storage; none of what interruptions cost here. Machines on demand need no second cloud, so nothing
leaves one, and no control box.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spotd.money.split import Use
from spotd.money.units import NodeHours


@dataclass(frozen=True)
class Paid:
    """Sums over what was paid for, prepaid hours left out. `uses` is node time by use, with
    microseconds of machines; `start_us` one start of all machines of the job."""

    compute_microusd: int
    storage_microusd: int
    other_microusd: int
    list_microusd: int
    best_microusd: int
    uses: Mapping[Use, int]
    start_us: int = 0

    @property
    def total_microusd(self) -> int:
        return self.compute_microusd + self.storage_microusd + self.other_microusd

    @property
    def billed_us(self) -> int:
        return sum(self.uses.values())


@dataclass(frozen=True)
class Instead:
    """One counterfactual. `basis` is NEEDED (the hours that on-demand would have needed), SAME (the
    same hours, an upper bound) or, of a sum of both, MIXED. `priced_microusd` are the same hours on
    demand; `spent_microusd` and `paid_microusd` what was paid for them, and with all that comes on
    top."""

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
        """How far below the price on demand the same hours were; None where none is known."""
        return 1 - self.spent_microusd / self.priced_microusd if self.priced_microusd else None

    @property
    def saving(self) -> float | None:
        """The fraction that was saved, at most the discount; None where no price is known."""
        if self.discount is None or not self.total_microusd:
            return None
        return min(1 - self.paid_microusd / self.total_microusd, self.discount)


AS_IS, BEST = "same provider", "cheapest anywhere"
SAME, NEEDED, MIXED = "same hours", "needed hours", "needed hours, or the same where not known"


def counterfactuals(paid: Paid) -> list[Instead]:
    """On demand in the same places, and in the cheapest place that has such machines: for the same
    hours, and, where steps were reported, for those that on-demand would have needed. Without those
    whose price is not known."""
    found = []
    for name, priced in ((AS_IS, paid.list_microusd), (BEST, paid.best_microusd)):
        for basis, hours_us in ((SAME, paid.billed_us), (NEEDED, needed_us(paid))):
            if priced and hours_us is not None:
                found.append(_instead(name, basis, paid, priced, hours_us))
    return found


def needed_us(paid: Paid) -> int | None:
    """Machine time that on-demand would have needed, at most what was billed; None where no steps
    were reported."""
    useful = paid.uses.get(Use.USEFUL, 0)
    if not useful:
        return None
    worked = useful + paid.uses.get(Use.REPLAYED, 0)
    saves = paid.uses.get(Use.CHECKPOINT, 0) * useful // worked
    return min(useful + saves + paid.start_us, paid.billed_us)


def _instead(name: str, basis: str, paid: Paid, priced: int, hours_us: int) -> Instead:
    compute = priced * hours_us // paid.billed_us if paid.billed_us else 0
    spent, total = paid.compute_microusd, paid.total_microusd
    storage = paid.storage_microusd
    return Instead(name, basis, NodeHours(hours_us), compute, storage, priced, spent, total)


def added(jobs: Sequence[Sequence[Instead]]) -> list[Instead]:
    """Over several jobs, those alone whose prices on demand are known: the same hours, and for each
    job the hours that it would have needed, as far as that is known."""
    found = []
    for name in (AS_IS, BEST):
        for basis in (SAME, NEEDED):
            best = [_closest(job, name, basis) for job in jobs]
            known = [one for one in best if one is not None and one.priced_microusd]
            if not known:
                continue
            bases = {one.basis for one in known}
            if basis == NEEDED and NEEDED not in bases:
                continue
            found.append(_sum(name, basis if len(bases) == 1 else MIXED, known))
    return found


def _closest(job: Sequence[Instead], name: str, basis: str) -> Instead | None:
    own = [one for one in job if one.name == name]
    exact = [one for one in own if one.basis == basis]
    return next(iter(exact or own), None)


def _sum(name: str, basis: str, known: Sequence[Instead]) -> Instead:
    return Instead(
        name,
        basis,
        NodeHours(sum(one.hours.us for one in known)),
        sum(one.compute_microusd for one in known),
        sum(one.storage_microusd for one in known),
        sum(one.priced_microusd for one in known),
        sum(one.spent_microusd for one in known),
        sum(one.paid_microusd for one in known),
    )
