"""The same work on demand, added up to the end of each day: the line beside what was paid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spotd.api.views.job_account import ControlBoxCost, Records, account_of
from spotd.api.views.resources import iso
from spotd.domain.market import Market
from spotd.money.focus import days
from spotd.money.report import report_of
from spotd.store.checkpoint_costs import Window

_NO_BOX = ControlBoxCost(0, {}, 0)  # on-demand machines need no control box


@dataclass(frozen=True)
class OnDemandSum:
    """The cost of all jobs so far on demand; None where that of `unknown_jobs` is not known."""

    microusd: int | None
    unknown_jobs: int = 0


def on_demand_by_day(
    records: Sequence[Records], market: Market, window: Window, now_us: int
) -> dict[str, OnDemandSum]:
    """Return the sum from the window's begin to the end of each of its days (UTC).

    A day is unknown as soon as the work of one job until then is: there is no sum without it.
    """
    sums: dict[str, OnDemandSum] = {}
    before: dict[str, int | None] = {}
    for from_us, to_us in days(window.since_us, window.until_us):
        so_far, last_day = Window(window.since_us, to_us), to_us >= window.until_us
        known: dict[str, int | None] = {}
        for record in records:
            job_id = record.job.id
            # What has ended is read again on the last day alone, for what is stored since.
            if (
                job_id in before
                and not last_day
                and not record.spent(Window(from_us, to_us), now_us)
            ):
                known[job_id] = before[job_id]
            elif record.spent(so_far, now_us):
                known[job_id] = _on_demand(record, market, so_far, now_us)
        unknown = sum(value is None for value in known.values())
        total = None if unknown else sum(value or 0 for value in known.values())
        sums[str(iso(from_us))[:10]] = OnDemandSum(total, unknown)
        before = known
    return sums


def _on_demand(record: Records, market: Market, window: Window, now_us: int) -> int | None:
    account = account_of(record, market, _NO_BOX, window, now_us)
    told = report_of(account, window.since_us, window.until_us).told
    return told.total_microusd if told else None
