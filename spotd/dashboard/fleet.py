"""Cards about machines: those that cost money now, those taken away, and those no job wants."""

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
    Column("Training", number=True),
    Column("$/h", number=True),
)
_MACHINES = (
    Column("Job"),
    Column("Where"),
    Column("Machine"),
    Column("State"),
    Column("Step", number=True, more=True),
    Column("$/h", number=True),
    Column("Requested", more=True),
)
_TAKEN = (
    Column("Cloud"),
    Column("Machine-hours", number=True),
    Column("Preempted", number=True),
    Column("Lost without notice", number=True),
    Column("Notice, median", number=True, tip="Seconds from the notice to the end"),
    Column("Requested", number=True),
    Column("Refused", number=True),
    Column("Resumed", number=True, tip="Machines that should continue a job, and did"),
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


def machines(context: PageContext, nodes: Data | None) -> Html:
    """Return the sums by provider, and each machine."""
    if nodes is None:
        return card("fleet", "Fleet", el("p", "not known: there was no answer", cls="empty"))
    items = nodes["items"]
    sums: list[list[Child]] = [
        [
            context.provider(name),
            len(mine),
            sum(node["state"] == "running" for node in mine),
            f"{money(sum(node['price_usd_per_h'] for node in mine))}/h",
        ]
        for name, mine in sorted(_grouped(items, lambda node: node["provider"]).items())
    ]
    rows: list[list[Child]] = [
        [
            context.job(node["job_id"], node["job"]),
            place_words(node),
            context.machine(node),
            sign(node["state"]),
            f"{node['step']:,}",
            f"{money(node['price_usd_per_h'])}/h",
            context.age(node["requested_at"]),
        ]
        for node in items
    ]
    return card(
        "fleet",
        "Fleet",
        table("Machines by provider", _BY_PROVIDER, sums, _no_machines(context)),
        table("Machines that cost money now", _MACHINES, rows, "", [node["id"] for node in items])
        if rows
        else None,
    )


def _no_machines(context: PageContext) -> Html:
    return join("No machine costs money now. What could be had: ", context.spotctl("offers"))


def _grouped(items: list[Data], name: Callable[[Data], str]) -> dict[str, list[Data]]:
    groups: dict[str, list[Data]] = {}
    for item in items:
        groups.setdefault(name(item), []).append(item)
    return groups


def taken_tile(stats: Data | None) -> Html:
    if stats is None:
        return tile("Taken away, 24 h", "?")
    interruptions = stats["total"]["interruptions"]
    resumed = stats["total"]["resumes"]
    details = (
        f"{resumed['trained']} of {resumed['tried']} resumes trained" if resumed["tried"] else ""
    )
    return tile("Taken away, 24 h", interruptions["count"], details or "spot machines")


def interruptions(context: PageContext, stats: Data | None, events: list[Data]) -> Html:
    """Return the interruptions of the last day by cloud, and the events of each."""
    title = "Interruptions of the last 24 h"
    if stats is None:
        return card("taken", title, el("p", "not known: there was no answer", cls="empty"))
    rows = [_taken_row(row) for row in stats["items"]]
    empty = "No spot machine was requested in the last day."
    story = [event for event in events if event["kind"] in STORY and event["at"] >= stats["since"]][
        -12:
    ]
    items = (
        el(
            "li", context.age(event["at"]), " ", context.job(event["job_id"], event["job"]), ": ",
            event["text"], data_key=f"e{event['id']}",
        )
        for event in reversed(story)
    )  # fmt: skip
    return card(
        "taken",
        title,
        table("Spot machines by cloud", _TAKEN, rows, empty),
        el("ul", *items, cls="rows") if story else None,
    )


def _taken_row(row: Data) -> list[Child]:
    interruptions, launches, resumes = row["interruptions"], row["launches"], row["resumes"]
    median = row["notice"]["median_s"]
    return [
        row["name"],
        f"{row['machine_hours']:,.2f} h",
        interruptions["preempted"],
        interruptions["lost"],
        "-" if median is None else f"{median:.0f} s",
        launches["asked"],
        sum(launches["refused"].values()),
        f"{resumes['trained']} of {resumes['tried']}",
    ]


def leak_tile(orphans: Data | None) -> Html:
    if orphans is None:
        return tile("Leaks", "?")
    count = len(orphans["items"])
    if not count and orphans["unswept"]:
        return tile("Leaks", "?", f"not known of {', '.join(orphans['unswept'])}", "warn")
    if not count:
        return tile("Leaks", "0", "all belongs to a job")
    return tile("Leaks", count, f"{money(orphans['usd_per_h'])}/h in no job's bill", "bad")


def leaks(context: PageContext, orphans: Data | None) -> Html:
    """Return the card of resources that cost money and belong to no job."""
    if orphans is None:
        return card("leaks", "Leaks", el("p", "not known: there was no answer", cls="empty"))
    items = orphans["items"]
    rows: list[list[Child]] = [
        [
            item["what"],
            el("code", item["id"]),
            where(item),
            f"{item['job'] or '-'} g{item['generation'] or '?'}",
            "?" if item["price_usd_per_h"] is None else f"{money(item['price_usd_per_h'])}/h",
            context.age(item["held_since"]),
            item["why"],
        ]
        for item in items
    ]
    unswept = orphans["unswept"]
    empty = "Everything with our tag belongs to a job."
    if unswept:
        empty = f"Not known here of {', '.join(unswept)}; nothing is held elsewhere."
    note = None
    if items:
        unpriced = f" and {orphans['unpriced']} of unknown price" if orphans["unpriced"] else ""
        things = count(len(items), "thing", "things")
        note = join(
            f"{things}, {money(orphans['usd_per_h'])}/h{unpriced}, in no job's bill. To end them: ",
            context.spotctl("orphans", "end"),
        )
    keys = [item["id"] for item in items]
    return card(
        "leaks", "Leaks", table("Resources that no job uses", _HELD, rows, empty, keys), note=note
    )
