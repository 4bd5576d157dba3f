"""The cards about a job's cost, its forecast and its checkpoints."""

from __future__ import annotations

from typing import Any

from spotd.api_client.wording import completion_pairs
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


def card_of(context: PageContext, cost: Data | None, report: Data | None, name: str) -> Html:
    if cost is None or report is None:
        return card("cost", "Cost", el("p", "not known: there was no answer", cls="empty"))
    so_far = " so far" if cost["estimated"] else ""
    figures = pairs(
        [
            ("machines", spent(cost["spend_usd"], cost["max_cost_usd"], so_far)),
            ("in all", money(report["total_usd"])),
            ("per useful GPU-hour", money(report["usd_per_useful_gpu_hour"])),
            ("goodput", percent(report["goodput"])),
            *_joined(completion_pairs(cost)),
            ("saved", percent(report["saving"])),
            ("price off", percent(report["discount"])),
        ]
    )
    return card(
        "cost",
        "Cost",
        figures,
        el("div", _items(report), _uses(report), cls="side"),
        table("The same on demand", _INSTEAD, [_instead(row) for row in report["on_demand"]], ""),
        [el("p", text, cls="note") for text in report["unknown"]],
        note=(provisional(report), ". ", context.spotctl("cost", "report", name)),
    )


def _joined(rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the pairs with lines that have no name appended to the line before."""
    merged: list[tuple[str, str]] = []
    for name, text in rows:
        if name or not merged:
            merged.append((name, text))
        else:
            merged[-1] = (merged[-1][0], f"{merged[-1][1]}; {text}")
    return merged


def _items(report: Data) -> Html:
    rows: list[list[Child]] = [
        [
            item["phase"],
            item["what"],
            f"{item['quantity']:,.3f} {_unit(item['unit'])}" if item["unit"] else "-",
            "-" if item["rate_usd"] is None else money(item["rate_usd"]),
            money(item["cost_usd"]),
            "hedge loser" if item["hedge_lost"] else "" if item["estimated"] else "reconciled",
        ]
        for item in report["items"]
    ]
    sums = ["in all", "", "", "", money(report["total_usd"]), ""]
    return table("Line items", _ITEMS, rows, "Nothing was paid for yet.", sums=sums)


def _uses(report: Data) -> Html:
    total_usd = report["compute_usd"]
    rows: list[list[Child]] = [
        [
            use["use"],
            f"{use['node_hours']:,.3f} h",
            money(use["cost_usd"]),
            percent(use["cost_usd"] / total_usd) if total_usd else "-",
            bar(use["cost_usd"], total_usd, f"Share of {use['use']} in the cost of machines"),
        ]
        for use in report["hours"]
    ]
    sums = ["machines", f"{report['billed_node_hours']:,.3f} h", money(total_usd), "", ""]
    return table("Use of the hours", _USES, rows, "No machine ran yet.", sums=sums)


def _instead(row: Data) -> list[Child]:
    return [
        row["name"],
        row["basis"],
        money(row["total_usd"]),
        percent(row["saving"]),
        percent(row["discount"]),
    ]


def _unit(unit: str) -> str:
    return {"Hours": "h", "GB-Months": "GB-months"}.get(unit, unit)


_CHECKPOINTS = (
    Column("Step", number=True),
    Column("Generation", number=True),
    Column("Saved"),
    Column("Size", number=True),
    Column("Shards", number=True),
    Column(""),
)


def checkpoints(context: PageContext, saved: Data | None, name: str) -> Html:
    """Return the card of checkpoints that a resume could start from."""
    if saved is None:
        return card("saved", "Checkpoints", el("p", "not known: there was no answer", cls="empty"))
    rows: list[list[Child]] = [
        [
            f"{checkpoint['step']:,}",
            checkpoint["generation"],
            context.age(checkpoint["created_at"]),
            size(checkpoint["bytes"]),
            checkpoint["shards"],
            ", ".join(
                [
                    *(["newest"] if checkpoint["newest"] else []),
                    *(f"pinned as {p}" for p in checkpoint["pins"]),
                ]
            )
            + (f" {checkpoint['problem']}" if checkpoint["problem"] else ""),
        ]
        for checkpoint in saved["items"]
    ]
    empty = "Nothing is saved yet."
    note = (f"In {saved['store']}. ", context.spotctl("ckpt", "ls", name))
    caption = "Retained checkpoints, newest first"
    return card("saved", "Checkpoints", table(caption, _CHECKPOINTS, rows, empty), note=note)
