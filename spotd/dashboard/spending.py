"""The card about money: spending of today and this month, and the status of budgets."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from spotd.base.text import clean, money, percent
from spotd.dashboard.components import Column, PageContext, bar, card, count, sign, table, tile
from spotd.dashboard.html import Child, Html, el, join
from spotd.plots import svg
from spotd.plots.curves import Line, chart

Data = dict[str, Any]
_BUDGETS = (
    Column("Budget"),
    Column("State"),
    Column("Of"),
    Column("A month", number=True),
    Column("Spent", number=True),
    Column("Share", number=True),
    Column("Now", number=True),
    Column("At the end", number=True, tip="At the present rate, by the end of the month"),
    Column("10 % to 90 %", number=True),
    Column("Used up"),
)
_DAYS = (Column("Day (UTC)"), Column("Cost", number=True), Column(""))
_SUMS = (
    Column("This month by"),
    Column("Name"),
    Column("Cost", number=True),
)


def provisional(report: Data) -> str:
    """Return whether the report is provisional, in the words of `spotctl cost report`."""
    if not report["provisional"]:
        return "reconciled with a bill"
    invoiced = report["invoiced_usd"]
    confirmed = f"; {money(invoiced)} reconciled" if invoiced else ""
    return f"provisional: by prices and times{confirmed}"


def tiles(today: Data | None, month: Data | None) -> list[Html]:
    return [
        tile(
            name,
            money(report["total_usd"]) if report else "?",
            provisional(report) if report else None,
        )
        for name, report in (("Today", today), ("This month", month))
    ]


def warnings(budgets: Data | None) -> list[Child]:
    """Return rows for budgets that are used up or will be."""
    rows: list[Child] = []
    for budget in (budgets or {"items": []})["items"]:
        spent, limit = budget["spent_usd"], budget["budget_usd"]
        if spent >= limit:
            rows.append(
                (sign("error"), f" Budget {budget['name']}: {money(spent)} of {money(limit)}")
            )
        elif budget["forecast_usd"] > limit:
            at = (budget["used_up_at"] or "")[:16].replace("T", " ")
            when = f", used up {at} UTC" if at else ""
            forecast = money(budget["forecast_usd"])
            text = f" Budget {budget['name']} is expected to reach {forecast} of {money(limit)}"
            rows.append((sign("warning"), f"{text}{when}"))
    return rows


def card_of(
    context: PageContext, today: Data | None, month: Data | None, budgets: Data | None
) -> Html:
    if month is None or today is None:
        return card("money", "Money", el("p", "not known: there was no answer", cls="empty"))
    days = month.get("days", [])
    most = max((day["total_usd"] for day in days), default=0.0)
    rows: list[list[Child]] = [
        [day["day"], money(day["total_usd"]), bar(day["total_usd"], most, f"Cost of {day['day']}")]
        for day in reversed(days[-14:])
    ]
    sums: list[list[Child]] = [
        [by, total[by] or "-", money(total["total_usd"])]
        for by in ("project", "user", "provider")
        for total in month[f"{by}s"][:5]
    ]
    note = join(
        f"{money(today['total_usd'])} today, {money(month['total_usd'])} this month; ",
        provisional(month),
        ". ",
        context.spotctl("cost", "report", "--since", month["since"][:10]),
    )
    return card(
        "money",
        "Money",
        _budgets(budgets),
        _so_far(days, budgets),
        el(
            "div",
            table("Cost by day, the last 14 of this month", _DAYS, rows, "Nothing was spent yet."),
            table("Cost by user and place", _SUMS, sums, "") if sums else None,
            cls="side",
        ),
        note=note,
    )


def _so_far(days: list[Data], budgets: Data | None) -> Html | None:
    """Return the cost of the month day by day, added up, beside the budgets for all jobs."""
    if len(days) < 2:
        return None
    numbers = [float(day["day"][-2:]) for day in days]
    sums = list(accumulate(day["total_usd"] for day in days))
    lines = [Line("paid", svg.BLUE, list(zip(numbers, sums, strict=True)))]
    for budget in (budgets or {"items": []})["items"]:
        if not budget["user"] and not budget["project"]:
            limit = budget["budget_usd"]
            points = [(numbers[0], limit), (numbers[-1], limit)]
            lines.append(Line(clean(f"budget {budget['name']}"), svg.RED, points, dash="2 3"))
    instead = [day.get("on_demand_so_far_usd") for day in days]
    if any(value is not None for value in instead):
        points = list(zip(numbers, instead, strict=True))
        lines.insert(1, Line("same work on demand", svg.ORANGE, points, dash="6 3"))
    title = "Cost of this month, added up by day"
    drawn = chart(title, lines, across="day", value=money, from_zero=True)
    # spotd.plots.svg escapes its input.
    return el(
        "figure",
        el("figcaption", title),
        Html(drawn),
        el("p", _on_demand_note(days), cls="note"),
        cls="chart",
    )


def _on_demand_note(days: list[Data]) -> str:
    """Return what the same work on demand comes to, or from when and why that is not known."""
    last = days[-1]
    if (instead := last.get("on_demand_so_far_usd")) is not None:
        return f"The same work on demand: {money(instead)} so far."
    unknown = [day for day in days if day.get("on_demand_so_far_usd") is None]
    jobs = last.get("on_demand_unknown_jobs") or 0
    whose = f", because the useful work of {count(jobs, 'job')} is not known" if jobs else ""
    return f"The same work on demand is not known on {count(len(unknown), 'day')}{whose}."


def _budgets(budgets: Data | None) -> Html:
    items = (budgets or {"items": []})["items"]
    rows = [_budget_row(budget) for budget in items]
    empty = join(
        "No budget is configured, and none stops a job. In config.toml: ",
        el("code", "[budgets.NAME]"),
    )
    return table("Budgets of this month", _BUDGETS, rows, empty)


def _budget_row(budget: Data) -> list[Child]:
    spent, limit = budget["spent_usd"], budget["budget_usd"]
    low, high = money(budget["forecast_low_usd"]), money(budget["forecast_high_usd"])
    return [
        budget["name"],
        sign(budget["state"]),
        ", ".join(part for part in (budget["user"], budget["project"]) if part) or "all",
        money(limit),
        money(spent),
        (percent(spent / limit), " ", bar(spent, limit, f"Share of budget {budget['name']} spent")),
        f"{money(budget['usd_per_hour'])}/h",
        money(budget["forecast_usd"]),
        f"{low} to {high}",
        (budget["used_up_at"] or "not this month")[:16].replace("T", " "),
    ]
