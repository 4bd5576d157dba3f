"""Machines: those that cost money now, those that were taken away, and those that nobody wants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spotd.base.text import money
from spotd.base.text import place as place_words
from spotd.dashboard.components import Column, PageContext, card, count, sign, table, tile, where
from spotd.dashboard.html import Child, Html, el, join

Data = dict[str, Any]
_BY_PROVIDER = (
    Column("Provider"),
    Column("Machines", number=True),
    Column("Of them training", number=True),
    Column("$/h", number=True),
)
_MACHINES = (
    Column("Job"),
    Column("Where"),
    Column("Machine"),
    Column("State"),
    Column("Step", number=True),
    Column("$/h", number=True),
    Column("Asked for"),
)
_TAKEN = (
    Column("Cloud"),
    Column("Machine-hours", number=True),
    Column("Preempted", number=True),
    Column("Lost without a word", number=True),
    Column("Notice, median", number=True, tip="Seconds from the notice to the end"),
    Column("Asked for", number=True),
    Column("Refused", number=True),
    Column("Resumed", number=True, tip="Machines that were to go on with a job, and trained"),
)
_HELD = (
    Column("What"),
    Column("Id"),
    Column("Where"),
    Column("Of job"),
    Column("$/h", number=True),
    Column("Held since"),
    Column("Because"),
)
STORY = ("notice", "lost", "recovered", "outbid", "moved")


def machines(place: PageContext, nodes: Data | None) -> Html:
    """Sums by provider, and each of them."""
    if nodes is None:
        return card("fleet", "Fleet", el("p", "not known: there was no answer", cls="empty"))
    items = nodes["items"]
    sums = [
        [
            name,
            len(mine),
            sum(one["state"] == "running" for one in mine),
            f"{money(sum(one['price_usd_per_h'] for one in mine))}/h",
        ]
        for name, mine in sorted(_grouped(items, lambda one: one["provider"]).items())
    ]
    rows: list[list[Child]] = [
        [
            place.job(one["job_id"], one["job"]),
            place_words(one),
            f"{one['instance_type']} {one['capacity_type']}",
            sign(one["state"]),
            f"{one['step']:,}",
            f"{money(one['price_usd_per_h'])}/h",
            place.age(one["requested_at"]),
        ]
        for one in items
    ]
    return card(
        "fleet",
        "Fleet",
        table("Machines by provider", _BY_PROVIDER, sums, _no_machines(place)),
        table("Machines that cost money now", _MACHINES, rows, "", [one["id"] for one in items])
        if rows
        else None,
    )


def _no_machines(place: PageContext) -> Html:
    return join("No machine costs money now. What could be had: ", place.spotctl("offers"))


def _grouped(items: list[Data], name: Callable[[Data], str]) -> dict[str, list[Data]]:
    found: dict[str, list[Data]] = {}
    for one in items:
        found.setdefault(name(one), []).append(one)
    return found


def taken_tile(stats: Data | None) -> Html:
    if stats is None:
        return tile("Taken away, 24 h", "?")
    found = stats["total"]["interruptions"]
    resumed = stats["total"]["resumes"]
    more = f"{resumed['trained']} of {resumed['tried']} resumes trained" if resumed["tried"] else ""
    return tile("Taken away, 24 h", found["count"], more or "spot machines")


def interruptions(place: PageContext, stats: Data | None, events: list[Data]) -> Html:
    """Of the last day, by cloud, and what happened one by one."""
    title = "Interruptions of the last 24 h"
    if stats is None:
        return card("taken", title, el("p", "not known: there was no answer", cls="empty"))
    rows = [_taken_row(one) for one in stats["items"]]
    empty = "No spot machine was asked for in the last day."
    told = [one for one in events if one["kind"] in STORY and one["at"] >= stats["since"]][-12:]
    items = (
        el(
            "li", place.age(one["at"]), " ", place.job(one["job_id"], one["job"]), ": ",
            one["text"], data_key=f"e{one['id']}",
        )
        for one in reversed(told)
    )  # fmt: skip
    return card(
        "taken",
        title,
        table("Spot machines by cloud", _TAKEN, rows, empty),
        el("ul", *items, cls="rows") if told else None,
    )


def _taken_row(one: Data) -> list[Child]:
    found, launches, resumes = one["interruptions"], one["launches"], one["resumes"]
    median = one["notice"]["median_s"]
    return [
        one["name"],
        f"{one['machine_hours']:,.2f} h",
        found["preempted"],
        found["lost"],
        "-" if median is None else f"{median:.0f} s",
        launches["asked"],
        sum(launches["refused"].values()),
        f"{resumes['trained']} of {resumes['tried']}",
    ]


def leak_tile(orphans: Data | None) -> Html:
    if orphans is None:
        return tile("Leaks", "?")
    many = len(orphans["items"])
    if not many and orphans["unswept"]:
        return tile("Leaks", "?", f"not known of {', '.join(orphans['unswept'])}", "warn")
    if not many:
        return tile("Leaks", "0", "all belongs to a job")
    return tile("Leaks", many, f"{money(orphans['usd_per_h'])}/h in no job's bill", "bad")


def leaks(place: PageContext, orphans: Data | None) -> Html:
    """What is paid for and belongs to no job."""
    if orphans is None:
        return card("leaks", "Leaks", el("p", "not known: there was no answer", cls="empty"))
    items = orphans["items"]
    rows: list[list[Child]] = [
        [
            one["what"],
            el("code", one["id"]),
            where(one),
            f"{one['job'] or '-'} g{one['generation'] or '?'}",
            "?" if one["price_usd_per_h"] is None else f"{money(one['price_usd_per_h'])}/h",
            place.age(one["held_since"]),
            one["why"],
        ]
        for one in items
    ]
    unswept = orphans["unswept"]
    empty = "Everything with our tag belongs to a job."
    if unswept:
        empty = f"Not known here of {', '.join(unswept)}; nothing is held elsewhere."
    note = None
    if items:
        more = f" and {orphans['unpriced']} of unknown price" if orphans["unpriced"] else ""
        many = count(len(items), "thing", "things")
        note = join(
            f"{many}, {money(orphans['usd_per_h'])}/h{more}, in no job's bill. To end them: ",
            place.spotctl("orphans", "end"),
        )
    keys = [one["id"] for one in items]
    return card("leaks", "Leaks", table("What no job wants", _HELD, rows, empty, keys), note=note)
