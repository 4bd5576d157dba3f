"""Routes of the cost report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spotd.api.request.request import ApiRequest, bad_input
from spotd.api.routes.results import evaluated
from spotd.api.views.job_account import ControlBoxCost, Records, account_of, box_of, records_of
from spotd.api.views.on_demand_by_day import OnDemandSum, on_demand_by_day
from spotd.api.views.resources import iso
from spotd.domain.market import Market
from spotd.domain.units import DAY_US, US_PER_H
from spotd.money.compare import RunFacts, compare, comparison_data, interruptions
from spotd.money.document import protected_data, report_data
from spotd.money.focus import COLUMNS, Row, days, metadata, months, rows_of
from spotd.money.report import SUMS, Report, by_name, report_of, together
from spotd.money.savings import Savings, protected, savings_of, savings_together
from spotd.money.units import usd
from spotd.store.checkpoint_costs import Window

MOST_DAYS = 100  # days in a report by day


def report(call: ApiRequest) -> dict[str, Any]:
    """Report the costs of all jobs that had machines between `since_us` and `until_us`.

    `by=day` adds a row per day (UTC), with the same work on demand up to then where it is known.
    """
    window, now_us, by_what = window_of(call), call.now_us, call.query.get("by", "")
    if by_what not in ("", *SUMS):
        raise bad_input(f"by is one of {', '.join(SUMS)}, not {by_what!r}", "by=day")
    box, market = _box(call, window), call.context.market(now_us)
    records = _records(call, box)
    reports = [_report(record, market, box, window, now_us) for record in records]
    whole = report_data(together(reports), savings=_savings(reports))
    del whole["items"]
    sums: dict[str, list[dict[str, Any]]] = {
        f"{by}s": _rows(by, by_name(reports, by)) for by in ("user", "project", "provider")
    }
    if by_what == "day":
        by_day = _by_day(records, market, box, window, now_us)
        sums["days"] = _day_rows(by_day, records, market, window, now_us)
    rows = [_row(item) for item in reports]
    return {"kind": "CostReport", **_times(window, now_us), **whole, **sums, "jobs": rows}


def job_report(call: ApiRequest) -> dict[str, Any]:
    """Report the costs of one job, with its line items."""
    window, market = window_of(call), call.context.market(call.now_us)
    job = call.job()
    records = records_of(call.context.store, job)
    report = _report(records, market, _box(call, window), window, call.now_us)
    account = account_of(records, market, ControlBoxCost(0, {}, 0), window, call.now_us)
    elapsed_us = (job.end.finished_at_us or call.now_us) - job.created_at_us
    facts = RunFacts(
        interruptions(account),
        elapsed_us / US_PER_H,
        job.spec.resources.num_nodes,
        tuple(row.evaluation for row in evaluated(call.context.store, job)),
    )
    data = {
        **report_data(report),
        "protected": protected_data(protected(account)),
        "comparison": comparison_data(compare(report, facts)),
    }
    return {"kind": "CostReport", **_times(window, call.now_us), **data}


def focus(call: ApiRequest) -> dict[str, Any]:
    """Return the ledger between `since_us` and `until_us` as rows of FOCUS, with their metadata.
    The rows have the same jobs and the same sum as a report of that time."""
    whole, now_us = window_of(call), call.now_us
    first_us = min((row.start_us for row in call.context.store.ledger.segments()), default=now_us)
    deployment = call.context.store.deployment.id()
    box, market = _box(call, whole), call.context.market(now_us)
    records = _records(call, box)
    rows: list[Row] = []
    for since_us, until_us in months(max(whole.since_us, first_us), whole.until_us):
        for record in records:
            account = account_of(record, market, box, Window(since_us, until_us), now_us)
            rows += rows_of(account, deployment, since_us, until_us)
    return {
        "kind": "FocusExport",
        **_times(whole, now_us),
        "metadata": metadata(deployment, now_us),
        "columns": list(COLUMNS),
        "items": [[row[name] for name in COLUMNS] for row in rows],
    }


def window_of(call: ApiRequest) -> Window:
    """Return the window of the query's `since_us` and `until_us`, which defaults to the present."""
    since_us = call.number("since_us", 0, 0, call.now_us)
    return Window(since_us, max(since_us, call.number("until_us", call.now_us, 0, call.now_us)))


def _box(call: ApiRequest, window: Window) -> ControlBoxCost:
    rate = call.context.settings.box_microusd_per_h()
    return box_of(call.context.store.ledger.segments(), rate, window, call.now_us)


def _records(call: ApiRequest, box: ControlBoxCost) -> list[Records]:
    """Return the records of the jobs that had machines in the time of the box."""
    store = call.context.store
    return [records_of(store, job) for job in store.jobs.rows() if job.id in box.billed_us]


def _report(
    records: Records, market: Market, box: ControlBoxCost, window: Window, now_us: int
) -> Report:
    account = account_of(records, market, box, window, now_us)
    return report_of(account, window.since_us, window.until_us)


def _savings(reports: Sequence[Report]) -> Savings | None:
    """Return the savings of the jobs of which they are known."""
    known_savings = [savings for savings in map(savings_of, reports) if savings is not None]
    told = together(reports).told
    return savings_together(known_savings, told.saving if told else None)


def _by_day(
    records: Sequence[Records], market: Market, box: ControlBoxCost, window: Window, now_us: int
) -> dict[str, int]:
    """Return the micro-USD of each day (UTC) that has any costs.

    The control box costs money on days without a machine, too. Raises ApiError (bad input) for too
    many days.
    """
    starts_us = (
        row.start_us for record in records for row in record.segments if row.state != "void"
    )
    since_us = max(window.since_us, min(starts_us, default=window.until_us))
    if window.until_us - since_us > MOST_DAYS * DAY_US:
        fix = "use --since 90d, or add --until"
        raise bad_input(f"a report by day covers at most {MOST_DAYS} days", fix)
    costs: dict[str, int] = {}
    for from_us, to_us in days(since_us, window.until_us):
        day = Window(from_us, to_us)
        spent = sum(record.spent(day, now_us) for record in records) + box.whole(day)
        for record in records:
            items, _ = record.extras(market, day, now_us)
            spent += sum(item.cost_microusd for item in items)
        if spent:
            costs[str(iso(from_us))[:10]] = spent
    return costs


def _rows(by: str, sums: Mapping[str, int], *, ordered: bool = False) -> list[dict[str, Any]]:
    """Return the sums, largest first, or `ordered` by name."""
    order = sorted(sums, key=lambda name: (0 if ordered else -sums[name], name))
    return [{by: name, "total_usd": usd(sums[name])} for name in order]


def _day_rows(
    costs: Mapping[str, int],
    records: Sequence[Records],
    market: Market,
    window: Window,
    now_us: int,
) -> list[dict[str, Any]]:
    """Return each day's cost, with the same work on demand from the report's begin to its end."""
    rows = _rows("day", costs, ordered=True)
    if not rows:
        return rows
    first_us = min(row.start_us for record in records for row in record.segments) if records else 0
    since_us = max(window.since_us, first_us)
    instead = on_demand_by_day(records, market, Window(since_us, window.until_us), now_us)
    for row in rows:
        so_far = instead.get(row["day"], OnDemandSum(None))
        row["on_demand_so_far_usd"] = None if so_far.microusd is None else usd(so_far.microusd)
        row["on_demand_unknown_jobs"] = so_far.unknown_jobs
    return rows


def _row(report: Report) -> dict[str, Any]:
    data = report_data(report)
    del data["items"]
    return data


def _times(window: Window, now_us: int) -> dict[str, Any]:
    return {"since": iso(window.since_us), "until": iso(window.until_us), "now": iso(now_us)}
