"""The page of one machine: what it is, what it cost, and what happened to it."""

from __future__ import annotations

from typing import Any

from spotd.api_routes import routes
from spotd.base.text import money
from spotd.base.text import place as place_words
from spotd.dashboard.api_cache import SOON_S, ApiCache, PageData, Query
from spotd.dashboard.components import PageContext, card, pairs, sign, tile
from spotd.dashboard.events import listed
from spotd.dashboard.html import Html, el, join
from spotd.dashboard.job import plain

Data = dict[str, Any]
# What a machine lives through, in order.
_TIMES = (
    ("requested", "requested_at"),
    ("granted", "launched_at"),
    ("started", "booted_at"),
    ("agent answers", "hello_at"),
    ("prepared", "ready_at"),
    ("may train", "claimed_at"),
    ("first step", "first_step_at"),
    ("last heard of", "heard_at"),
    ("work saved and released", "released_at"),
    ("program ended", "exited_at"),
    ("disks wiped", "wiped_at"),
    ("gone", "gone_at"),
)


def body(
    context: PageContext, cache: ApiCache, page_data: PageData, ident: str
) -> tuple[str, Html]:
    """Return the title of the page and its content."""
    (found,) = cache.fetch(page_data, Query(routes.LIST_NODES(), {"id": ident}))
    nodes = (found or {"items": []})["items"]
    if not nodes:
        text = "This machine is not on record." if found else "not known: there was no answer"
        return "Machine", join(el("p", text, cls="empty"), context.spotctl("nodes"))
    node = nodes[0]
    (cost,) = cache.fetch(page_data, Query(routes.JOB_COST(job=node["job_id"]), {}, SOON_S))
    events = [
        event for event in cache.events(page_data, node["job_id"]) if event["node_id"] == node["id"]
    ]
    times = [(name, context.age(node[at]) if node[at] else "") for name, at in _TIMES]
    title = f"{node['instance_type']} in {place_words(node)}"
    return title, join(
        _tiles(context, node, cost),
        card("life", "Times", pairs(times)),
        card("about", "Machine", pairs(_about(context, node))),
        _notices(context, node),
        card("events", "Events of this machine", listed(context, events[-30:], jobs=False)),
        card("last", "Last output", el("pre", plain(node["exit_tail"]), tabindex=0))
        if node["exit_tail"]
        else None,
    )


def _tiles(context: PageContext, node: Data, cost: Data | None) -> Html:
    mine = [row for row in (cost or {"nodes": []})["nodes"] if row["node_id"] == node["id"]]
    paid = money(mine[0]["spend_usd"]) if mine else "?"
    tiles = [
        tile("State", sign(node["state"]), node["leave_text"] or node["leave_reason"]),
        tile("Job", context.job(node["job_id"], node["job"]), f"attempt {node['generation']}"),
        tile("Step", f"{node['step']:,}"),
        tile("Cost", paid, f"{money(node['price_usd_per_h'])}/h"),
        tile("Provider", context.provider(node["provider"]), node["zone"] or node["region"]),
    ]
    return el("dl", *tiles, cls="tiles", aria_label="At a glance")


def _about(context: PageContext, node: Data) -> list[tuple[str, Any]]:
    error = node["launch_error"] or node["effect_error"]
    listed = node["list_usd_per_h"]
    code = node["exit_code"]
    return [
        ("bought as", node["capacity_type"].replace("_", " ")),
        ("on-demand price", f"{money(listed)}/h" if listed else "not known"),
        ("id of the cloud", el("code", node["instance_id"]) if node["instance_id"] else ""),
        ("address", node["host"]),
        ("renewed until", context.age(node["expires_at"]) if node["expires_at"] else ""),
        ("exit code", "" if code is None else str(code)),
        ("error", error),
    ]


def _notices(context: PageContext, node: Data) -> Html | None:
    """Return the notices of preemption and maintenance; None without any."""
    rows = [
        el(
            "li",
            notice["kind"].replace("_", " "),
            " heard ",
            context.age(notice["heard_at"]),
            (", deadline ", context.age(notice["deadline"])) if notice["deadline"] else None,
            ", withdrawn" if notice["withdrawn"] else None,
        )
        for notice in node["notices"]
    ]
    return card("notices", "Notices", el("ul", *rows, cls="rows")) if rows else None
