"""What one job cost, so that it adds up, and what is expected of it."""

from __future__ import annotations

from typing import Any

from spotd.api_client.wording import outlook_pairs
from spotd.base.text import money, percent, size, spent
from spotd.dashboard.components import Column, PageContext, bar, card, pairs, table
from spotd.dashboard.html import Child, Html, el
from spotd.dashboard.spending import provisional

Data = dict[str, Any]
_ITEMS = (
    Column("Phase"),
    Column("What"),
    Column("Quantity", number=True),
    Column("Each", number=True),
    Column("Cost", number=True),
    Column(""),
)
_USES = (
    Column("Machine-hours of"),
    Column("Hours", number=True),
    Column("Cost", number=True),
    Column("Share", number=True),
    Column(""),
)
_INSTEAD = (
    Column("On demand"),
    Column("For the"),
    Column("Cost", number=True),
    Column("Saved", number=True),
    Column("Price off", number=True),
)


def card_of(place: PageContext, cost: Data | None, report: Data | None, name: str) -> Html:
    if cost is None or report is None:
        return card("cost", "Cost", el("p", "not known: there was no answer", cls="empty"))
    running = " so far" if cost["estimated"] else ""
    told = pairs(
        [
            ("machines", spent(cost["spend_usd"], cost["max_cost_usd"], running)),
            ("in all", money(report["total_usd"])),
            ("per useful GPU-hour", money(report["usd_per_useful_gpu_hour"])),
            ("goodput", percent(report["goodput"])),
            *_joined(outlook_pairs(cost)),
            ("saved", percent(report["saving"])),
            ("price off", percent(report["discount"])),
        ]
    )
    return card(
        "cost",
        "Cost",
        told,
        el("div", _items(report), _uses(report), cls="side"),
        table("The same on demand", _INSTEAD, [_instead(one) for one in report["on_demand"]], ""),
        [el("p", text, cls="note") for text in report["unknown"]],
        note=(provisional(report), ". ", place.spotctl("cost", "report", name)),
    )


def _joined(rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Lines without a name belong to the one before."""
    found: list[tuple[str, str]] = []
    for name, text in rows:
        if name or not found:
            found.append((name, text))
        else:
            found[-1] = (found[-1][0], f"{found[-1][1]}; {text}")
    return found


def _items(report: Data) -> Html:
    rows: list[list[Child]] = [
        [
            one["phase"],
            one["what"],
            f"{one['quantity']:,.3f} {_unit(one['unit'])}" if one["unit"] else "-",
            "-" if one["rate_usd"] is None else money(one["rate_usd"]),
            exact(one["cost_usd"]),
            "hedge loser" if one["hedge_lost"] else "" if one["estimated"] else "reconciled",
        ]
        for one in report["items"]
    ]
    sums = ["in all", "", "", "", exact(report["total_usd"]), ""]
    return table("Line items", _ITEMS, rows, "Nothing was paid for yet.", sums=sums)


def _uses(report: Data) -> Html:
    whole = report["compute_usd"]
    rows: list[list[Child]] = [
        [
            one["use"],
            f"{one['node_hours']:,.3f} h",
            exact(one["cost_usd"]),
            percent(one["cost_usd"] / whole) if whole else "-",
            bar(one["cost_usd"], whole, f"Share of {one['use']} in the cost of machines"),
        ]
        for one in report["hours"]
    ]
    sums = ["machines", f"{report['billed_node_hours']:,.3f} h", exact(whole), "", ""]
    return table("What the hours went into", _USES, rows, "No machine ran yet.", sums=sums)


def _instead(one: Data) -> list[Child]:
    return [
        one["name"],
        one["basis"],
        money(one["total_usd"]),
        percent(one["saving"]),
        percent(one["discount"]),
    ]


def _unit(unit: str) -> str:
    return {"Hours": "h", "GB-Months": "GB-months"}.get(unit, unit)


def exact(usd: float) -> str:
    """So that a column can be added up."""
    return f"{'-' if usd < 0 else ''}${abs(usd):,.4f}"


_CHECKPOINTS = (
    Column("Step", number=True),
    Column("Generation", number=True),
    Column("Saved"),
    Column("Size", number=True),
    Column("Shards", number=True),
    Column(""),
)


def checkpoints(place: PageContext, found: Data | None, name: str) -> Html:
    """What a resume could go on from."""
    if found is None:
        return card("saved", "Checkpoints", el("p", "not known: there was no answer", cls="empty"))
    rows: list[list[Child]] = [
        [
            f"{one['step']:,}",
            one["generation"],
            place.age(one["created_at"]),
            size(one["bytes"]),
            one["shards"],
            ", ".join(
                [*(["newest"] if one["newest"] else []), *(f"pinned as {p}" for p in one["pins"])]
            )
            + (f" {one['problem']}" if one["problem"] else ""),
        ]
        for one in found["items"]
    ]
    empty = "Nothing is saved yet."
    note = (f"In {found['store']}. ", place.spotctl("ckpt", "ls", name))
    caption = "Checkpoints that are kept, the newest first"
    return card("saved", "Checkpoints", table(caption, _CHECKPOINTS, rows, empty), note=note)
