"""Text of `spotctl plan` and `spotctl why` on placement: the expected cost in each place."""

from __future__ import annotations

from typing import Any

from spotd.base.text import clean, money, seconds_since, span
from spotd.cli.render import Cell, Column, print_message, print_table

_ACTIONS = {
    "spot": "no spot to request",
    "on_demand": "no on-demand to request",
    "wait": "wait for spot",
    "stay": "stay",
}
_TERMS = (("train", "TRAIN $"), ("start", "START $"), ("lost", "LOST $"), ("egress", "EGRESS $"))
_COLUMNS = (
    Column("TO FINISH", wrap=True, rank=0),
    Column("AS"),
    *(Column(name, right=True, rank=2) for _, name in _TERMS),
    Column("TOTAL $", right=True, rank=0),
    Column("HOURS", right=True),
)


def print_placement(data: dict[str, Any]) -> None:
    """Print the costs by place; nothing for a job without a known amount of work."""
    if not data or not data["choice"]:
        return
    print_message(f"expected cost of {data['left_h']:.1f} h of work, by place:")
    print_table(_COLUMNS, [_row(cost) for cost in data["costs"]])
    print_message(_choice_text(data["choice"]))
    if deadline := data["deadline"]:
        print_message(_deadline_text(deadline))


def _row(cost: dict[str, Any]) -> list[Cell | str]:
    usd = cost["usd"]
    terms = [money(usd[name]) if usd[name] else "-" for name, _ in _TERMS]
    location = f"{cost['provider']}/{cost['zone']} {cost['instance_type']}"
    return [location, cost["capacity_type"], *terms, money(usd["total"]), f"{cost['hours']:.1f}"]


def _choice_text(choice: dict[str, Any]) -> str:
    action = _ACTIONS[choice["action"]]
    if choice["offer"]:
        action = f"request {choice['offer']}"
    return f"now: {action} ({clean(choice['why'])})"


def _deadline_text(data: dict[str, Any]) -> str:
    remaining_s = -(seconds_since(data["at"]) or 0.0)
    text = f"deadline in {span(max(remaining_s, 0.0))} ({data['at']})"
    if data["earliest"] is None:
        return f"{text}: not guaranteed: no on-demand offer is permitted and available"
    if data["late_s"]:
        return f"{text}: missed by {span(data['late_s'])}; the earliest is {data['earliest']}"
    if data["guarded"]:
        return f"{text}: met with on-demand machines from now on"
    if data["spare_s"] is None or data["spare_s"] < 0:
        return f"{text}: cannot be guaranteed; the earliest is {data['earliest']}"
    return f"{text}: on-demand is requested in {span(data['spare_s'])} at the latest"


def print_moves(rows: list[dict[str, Any]]) -> None:
    """Print when a place pays off to which checkpoint or data must be moved first.

    Of the places that never pay off, print only their number and the cheapest move.
    """
    for row in rows:
        if row["break_even_h"] is None:
            continue
        print_message(
            f"to {row['offer']}: {_moved_data(row)} costs {money(row['usd'])} and "
            f"{span(row['seconds'])}, paid back after {row['break_even_h']:,.1f} h of work at "
            f"{money(row['saves_usd_per_h'])}/h less than {row['from_offer']}"
        )
    never = [row for row in rows if row["break_even_h"] is None]
    if never:
        cheapest = min(never, key=lambda row: row["usd"])
        print_message(
            f"never paid back: moves to {len(never)} places that cost no less than "
            f"{cheapest['from_offer']} ({_moved_data(cheapest)} to {cheapest['offer']}: "
            f"{money(cheapest['usd'])})"
        )


def _moved_data(row: dict[str, Any]) -> str:
    parts = (("the checkpoint", "checkpoint_usd"), ("data", "data_usd"))
    return " and ".join(name for name, key in parts if row[key])


def print_prefetch(rows: list[dict[str, Any]]) -> None:
    """Print which dataset copies are prefetched for the job, and at what cost."""
    for row in rows:
        dataset = f"data set {clean(row['data_set'])} at {clean(row['copy'])}"
        if row["staged"]:
            text = f"{dataset}: there"
        elif row["refused"]:
            text = f"{dataset}: not prefetched: {clean(row['refused'])}"
        else:
            text = f"{dataset}: prefetched, {row['gb']:,.4g} GB for {money(row['usd'])} by list"
            text += f", {money(row['paid_usd'])} of it spent" if row["paid_usd"] else ""
        print_message(text)


def print_excluded(rows: list[dict[str, Any]]) -> None:
    """Print the offers that residency or operator rules exclude."""
    for row in rows:
        offers = "offers that fit are" if row["count"] > 1 else "offer that fits is"
        print_message(f"{row['count']} {offers} left out: {clean(row['why'])}")
