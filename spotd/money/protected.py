"""What checkpoints were good for: work that was safe when machines were taken away."""

from __future__ import annotations

from dataclasses import dataclass

from spotd.money.report import Account, report_of
from spotd.money.split import Use


@dataclass(frozen=True)
class Protected:
    """Of a job's interruptions: what the steps cost that survive and were made before the last of
    them, each counted once, and what was trained again all the same."""

    interruptions: int
    microusd: int
    replayed_microusd: int


def protected(account: Account) -> Protected:
    """Without a checkpoint, all that was made before an interruption would have been lost with it.
    Of the machines that trained and were taken away or lost."""
    ends = [
        max(part.end_us for part in one.stretches)
        for one in account.machines
        if one.chosen and one.stretches and one.details.get("interrupted") == "true"
    ]
    if not ends:
        return Protected(0, 0, 0)
    before, whole = report_of(account, 0, max(ends)), report_of(account)
    kept, again = before.costs.get(Use.USEFUL, 0), whole.costs.get(Use.REPLAYED, 0)
    return Protected(len(ends), kept, again)
