"""What `spotctl plan` and `why` say of where a job goes: each place with what it would cost until
the job is done, term by term."""

from __future__ import annotations

from typing import Any

from spotd.base.text import clean, money, seconds_since, span
from spotd.cli.render import Cell, Column, print_table, say

_WORDS = {
    "spot": "no spot to ask for",
    "on_demand": "nothing on demand to ask for",
    "wait": "wait for spot",
    "stay": "stay",
}
_TERMS = (("train", "TRAIN $"), ("start", "START $"), ("lost", "LOST $"), ("egress", "EGRESS $"))
_COLUMNS = (
    Column("TO FINISH", cut=True, tail=8),
    Column("AS"),
    *(Column(name, right=True) for _, name in _TERMS),
    Column("TOTAL $", right=True),
    Column("HOURS", right=True),
)


def print_placement(data: dict[str, Any]) -> None:
    """Nothing of a job that did not say how much there is to do: it is told where it goes by the
    table of offers."""
    if not data or not data["choice"]:
        return
    say(f"what {data['left_h']:.1f} h of work are expected to cost, by place:")
    print_table(_COLUMNS, [_row(one) for one in data["costs"]])
    say(_choice(data["choice"]))
    if deadline := data["deadline"]:
        say(_deadline(deadline))


def _row(one: dict[str, Any]) -> list[Cell | str]:
    usd = one["usd"]
    terms = [money(usd[name]) if usd[name] else "-" for name, _ in _TERMS]
    where = f"{one['provider']}/{one['zone']} {one['instance_type']}"
    return [where, one["capacity_type"], *terms, money(usd["total"]), f"{one['hours']:.1f}"]


def _choice(choice: dict[str, Any]) -> str:
    what = _WORDS[choice["action"]]
    if choice["offer"]:
        what = f"ask for {choice['offer']}"
    return f"now: {what} ({clean(choice['why'])})"


def _deadline(data: dict[str, Any]) -> str:
    left = -(seconds_since(data["at"]) or 0.0)
    text = f"deadline in {span(max(left, 0.0))} ({data['at']})"
    if data["earliest"] is None:
        return f"{text}: not promised, for nothing on demand is permitted and sold"
    if data["late_s"]:
        return f"{text}: missed by {span(data['late_s'])}; the earliest is {data['earliest']}"
    if data["guarded"]:
        return f"{text}: kept by machines on demand from now on"
    if data["spare_s"] is None or data["spare_s"] < 0:
        return f"{text}: cannot be promised; the earliest is {data['earliest']}"
    return f"{text}: on-demand is asked for in {span(data['spare_s'])} at the latest"


def print_moves(rows: list[dict[str, Any]]) -> None:
    """Whether a place pays to which checkpoint or data have to be carried first; of those that
    never do, how many there are."""
    for row in rows:
        if row["break_even_h"] is None:
            continue
        say(
            f"to {row['offer']}: {_carried(row)} costs {money(row['usd'])} and "
            f"{span(row['seconds'])}, paid back after {row['break_even_h']:,.1f} h of work at "
            f"{money(row['saves_usd_per_h'])}/h less than {row['from_offer']}"
        )
    never = [row for row in rows if row["break_even_h"] is None]
    if never:
        least = min(never, key=lambda row: row["usd"])
        say(
            f"never paid back: to go to {len(never)} places that cost no less than "
            f"{least['from_offer']} ({_carried(least)} to {least['offer']}: {money(least['usd'])})"
        )


def _carried(row: dict[str, Any]) -> str:
    parts = (("the checkpoint", "checkpoint_usd"), ("data", "data_usd"))
    return " and ".join(name for name, key in parts if row[key])


def print_ahead(rows: list[dict[str, Any]]) -> None:
    """Which copies of data sets are made ahead of the job, and for how much."""
    for row in rows:
        what = f"data set {clean(row['data_set'])} at {clean(row['copy'])}"
        if row["staged"]:
            text = f"{what}: there"
        elif row["refused"]:
            text = f"{what}: not brought ahead: {clean(row['refused'])}"
        else:
            text = f"{what}: brought ahead, {row['gb']:,.4g} GB for {money(row['usd'])} by list"
            text += f", {money(row['paid_usd'])} of it spent" if row["paid_usd"] else ""
        say(text)


def print_left_out(rows: list[dict[str, Any]]) -> None:
    """Offers that are out because of where they stand."""
    for row in rows:
        many = "offers that fit are" if row["count"] > 1 else "offer that fits is"
        say(f"{row['count']} {many} left out: {clean(row['why'])}")
