"""Money: what was spent today and this month, and how budgets stand."""

from __future__ import annotations

from typing import Any

from spotd.base.text import money, percent
from spotd.dashboard.components import Column, PageContext, bar, card, sign, table, tile
from spotd.dashboard.html import Child, Html, el, join

Data = dict[str, Any]
_BUDGETS = (
    Column("Budget"),
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
    """As `spotctl cost report` says it."""
    if not report["provisional"]:
        return "reconciled with a bill"
    part = report["invoiced_usd"]
    confirmed = f"; {money(part)} reconciled" if part else ""
    return f"provisional: by prices and times{confirmed}"


def tiles(today: Data | None, month: Data | None) -> list[Html]:
    return [
        tile(name, money(told["total_usd"]) if told else "?", provisional(told) if told else None)
        for name, told in (("Today", today), ("This month", month))
    ]


def warnings(budgets: Data | None) -> list[Child]:
    """Budgets that are used up, or will be."""
    rows: list[Child] = []
    for one in (budgets or {"items": []})["items"]:
        spent, cap = one["spent_usd"], one["budget_usd"]
        if spent >= cap:
            rows.append((sign("error"), f" Budget {one['name']}: {money(spent)} of {money(cap)}"))
        elif one["forecast_usd"] > cap:
            at = (one["used_up_at"] or "")[:16].replace("T", " ")
            when = f", used up {at} UTC" if at else ""
            text = f" Budget {one['name']} is to be {money(one['forecast_usd'])} of {money(cap)}"
            rows.append((sign("warning"), f"{text}{when}"))
    return rows


def card_of(
    place: PageContext, today: Data | None, month: Data | None, budgets: Data | None
) -> Html:
    if month is None or today is None:
        return card("money", "Money", el("p", "not known: there was no answer", cls="empty"))
    days = month.get("days", [])
    most = max((one["total_usd"] for one in days), default=0.0)
    rows: list[list[Child]] = [
        [one["day"], money(one["total_usd"]), bar(one["total_usd"], most, f"Cost of {one['day']}")]
        for one in reversed(days[-14:])
    ]
    sums: list[list[Child]] = [
        [by, one[by] or "-", money(one["total_usd"])]
        for by in ("project", "user", "provider")
        for one in month[f"{by}s"][:5]
    ]
    note = join(
        f"{money(today['total_usd'])} today, {money(month['total_usd'])} this month; ",
        provisional(month),
        ". ",
        place.spotctl("cost", "report", "--since", month["since"][:10]),
    )
    return card(
        "money",
        "Money",
        _budgets(budgets),
        el(
            "div",
            table("Cost by day, the last 14 of this month", _DAYS, rows, "Nothing was spent yet."),
            table("Cost by whom and where", _SUMS, sums, "") if sums else None,
            cls="side",
        ),
        note=note,
    )


def _budgets(budgets: Data | None) -> Html:
    items = (budgets or {"items": []})["items"]
    rows = [_budget_row(one) for one in items]
    empty = join(
        "No budget is configured, and none stops a job. In config.toml: ",
        el("code", "[budgets.NAME]"),
    )
    return table("Budgets of this month", _BUDGETS, rows, empty)


def _budget_row(one: Data) -> list[Child]:
    spent, cap = one["spent_usd"], one["budget_usd"]
    low, high = money(one["forecast_low_usd"]), money(one["forecast_high_usd"])
    return [
        one["name"],
        ", ".join(part for part in (one["user"], one["project"]) if part) or "all",
        money(cap),
        money(spent),
        (percent(spent / cap), " ", bar(spent, cap, f"Share of budget {one['name']} spent")),
        f"{money(one['usd_per_hour'])}/h",
        money(one["forecast_usd"]),
        f"{low} to {high}",
        (one["used_up_at"] or "not this month")[:16].replace("T", " "),
    ]
