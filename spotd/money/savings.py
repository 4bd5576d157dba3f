"""Attribute savings to causes: a chain of counterfactuals from on-demand to what was paid.

Each part is the difference of two neighbours in the chain, so that nothing counts twice and all
parts add up. `WorkSaved` is the work that checkpoints saved when machines were lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spotd.money.counterfactual import AS_IS, SAME
from spotd.money.hour_breakdown import TimeUse
from spotd.money.report import Account, Kind, Report, report_of


@dataclass(frozen=True)
class Part:
    """The saving of one cause. If `microusd` is None nothing is claimed, and `against` says why."""

    name: str
    microusd: int | None
    against: str


@dataclass(frozen=True)
class Savings:
    """The savings of a job. `fraction` is of the counterfactual, at most the price discount."""

    instead_microusd: int
    paid_microusd: int
    parts: tuple[Part, ...]
    fraction: float | None

    @property
    def total_microusd(self) -> int:
        return self.instead_microusd - self.paid_microusd

    @property
    def runs(self) -> float | None:
        """Number of further such runs that the saving pays for; None if nothing was paid."""
        if not self.paid_microusd:
            return None
        return max(0, self.total_microusd) / self.paid_microusd


NO_SCALING = "not claimed: no record says how long machines would have been idle otherwise"
NO_SIZING = "not claimed: the same work was never measured on other hardware"


def savings_of(report: Report) -> Savings | None:
    """Return the savings against the same provider on-demand, or None where they are not known."""
    needed = report.told
    by_basis = {
        counterfactual.basis: counterfactual
        for counterfactual in report.instead
        if counterfactual.name == AS_IS
    }
    same = by_basis.get(SAME)
    if same is None or needed is None:
        return None
    spot = same.compute_microusd - same.spent_microusd
    lost = needed.compute_microusd - same.compute_microusd  # at most 0
    other = -report.kind_microusd(Kind.EGRESS) - report.kind_microusd(Kind.CONTROL)
    parts = (
        Part("price", spot, "the same hours on demand, in the same places"),
        Part(
            "hours on top", lost, f"the {needed.basis} on demand: replays, restarts, waiting, idle"
        ),
        Part("egress and control box", other, "neither of the two, with one cloud on demand"),
        Part("autoscaling", None, NO_SCALING),
        Part("right-sizing", None, NO_SIZING),
    )
    return Savings(needed.total_microusd, needed.paid_microusd, parts, needed.saving)


def savings_together(jobs: Sequence[Savings], fraction: float | None) -> Savings | None:
    """Return the savings of several jobs part by part; None without jobs.

    `fraction` is that of all of them.
    """
    if not jobs:
        return None
    parts = []
    for number, part in enumerate(jobs[0].parts):
        known = [job.parts[number].microusd for job in jobs]
        sums = None if part.microusd is None else sum(value or 0 for value in known)
        parts.append(Part(part.name, sums, part.against))
    instead = sum(job.instead_microusd for job in jobs)
    paid = sum(job.paid_microusd for job in jobs)
    return Savings(instead, paid, tuple(parts), fraction)


@dataclass(frozen=True)
class WorkSaved:
    """The work saved from a job's interruptions.

    `microusd` is the cost of surviving steps made before the last interruption, each counted once;
    `replayed_microusd` that of steps trained again all the same.
    """

    interruptions: int
    microusd: int
    replayed_microusd: int


def protected(account: Account) -> WorkSaved:
    """Return the work that checkpoints saved.

    Without a checkpoint, everything made before an interruption would have been lost with it.
    Counted for machines that trained and were preempted or lost.
    """
    ends = [
        max(part.end_us for part in machine.stretches)
        for machine in account.machines
        if machine.chosen and machine.stretches and machine.details.get("interrupted") == "true"
    ]
    if not ends:
        return WorkSaved(0, 0, 0)
    before, total = report_of(account, 0, max(ends)), report_of(account)
    useful, replayed = before.costs.get(TimeUse.USEFUL, 0), total.costs.get(TimeUse.REPLAYED, 0)
    return WorkSaved(len(ends), useful, replayed)
