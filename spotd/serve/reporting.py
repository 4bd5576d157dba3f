"""Routes of the cost report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spotd.model import Job
from spotd.money.document import report_data, usd
from spotd.money.focus import COLUMNS, Row, metadata, months, rows_of
from spotd.money.report import Report, report_of, together
from spotd.serve.accounts import Box, account_of, box_of
from spotd.serve.call import Call
from spotd.serve.keep_costs import Window
from spotd.serve.views import iso


def report(call: Call) -> dict[str, Any]:
    """What all jobs cost that had machines between `since_us` and `until_us`, and in all."""
    window = window_of(call)
    box = _box(call, window)
    jobs = [job for job in call.backing.store.jobs() if job.id in box.billed_us]
    found = [_report(call, job, box, window) for job in jobs]
    whole = report_data(together(found))
    del whole["items"]
    rows = [_row(one) for one in found]
    sums = {f"{by}s": _by(found, by) for by in ("user", "project")}
    return {"kind": "CostReport", **_times(window, call.now_us), **whole, **sums, "jobs": rows}


def job_report(call: Call) -> dict[str, Any]:
    """The same of one job, with its line items."""
    window = window_of(call)
    data = report_data(_report(call, call.job(), _box(call, window), window))
    return {"kind": "CostReport", **_times(window, call.now_us), **data}


def focus(call: Call) -> dict[str, Any]:
    """The ledger between `since_us` and `until_us` as rows of FOCUS, and what goes beside them."""
    whole, now_us = window_of(call), call.now_us
    first_us = min((row.start_us for row in call.backing.store.segments()), default=now_us)
    deployment = call.backing.store.deployment()
    rows: list[Row] = []
    for since_us, until_us in months(max(whole.since_us, first_us), whole.until_us):
        window = Window(since_us, until_us)
        box, market = _box(call, window), call.backing.market(now_us)
        for job in call.backing.store.jobs():
            if job.id in box.billed_us:
                account = account_of(call.backing.store, job, market, box, window, now_us)
                rows += rows_of(account, deployment, since_us, until_us)
    return {
        "kind": "FocusExport",
        **_times(whole, now_us),
        "metadata": metadata(deployment, now_us),
        "columns": list(COLUMNS),
        "items": [[row[name] for name in COLUMNS] for row in rows],
    }


def window_of(call: Call) -> Window:
    """Of the query's `since_us` and `until_us`, the present where none is said."""
    since_us = call.number("since_us", 0, 0, call.now_us)
    return Window(since_us, max(since_us, call.number("until_us", call.now_us, 0, call.now_us)))


def _box(call: Call, window: Window) -> Box:
    rate = call.backing.box_microusd_per_h()
    return box_of(call.backing.store.segments(), rate, window, call.now_us)


def _report(call: Call, job: Job, box: Box, window: Window) -> Report:
    market = call.backing.market(call.now_us)
    account = account_of(call.backing.store, job, market, box, window, call.now_us)
    return report_of(account, window.since_us, window.until_us)


def _by(reports: Sequence[Report], by: str) -> list[dict[str, Any]]:
    """What each user, or each project, cost in all, the dearest first."""
    sums: dict[str, int] = {}
    for one in reports:
        name = getattr(one, by)
        sums[name] = sums.get(name, 0) + one.total_microusd
    order = sorted(sums, key=lambda name: (-sums[name], name))
    return [{by: name, "total_usd": usd(sums[name])} for name in order]


def _row(one: Report) -> dict[str, Any]:
    data = report_data(one)
    del data["items"]
    return data


def _times(window: Window, now_us: int) -> dict[str, Any]:
    return {"since": iso(window.since_us), "until": iso(window.until_us), "now": iso(now_us)}
