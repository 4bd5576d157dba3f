"""Compute the work that checkpoints saved when machines were lost."""

from __future__ import annotations

from dataclasses import dataclass

from spotd.money.hour_breakdown import TimeUse
from spotd.money.report import Account, report_of


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
