"""The page of one provider: its machines, interruptions, and what it sells in each region."""

from __future__ import annotations

from typing import Any

from spotd.api_routes import routes
from spotd.base.text import money
from spotd.base.text import place as place_words
from spotd.dashboard import prices
from spotd.dashboard.api_cache import SELDOM_S, SOON_S, ApiCache, PageData, Query
from spotd.dashboard.components import Column, PageContext, card, sign, table, tile
from spotd.dashboard.html import Child, Html, el, join

Data = dict[str, Any]
MOST = 100
DAY_S = 86_400
_MACHINES = (
    Column("Machine"),
    Column("Job"),
    Column("Where"),
    Column("State"),
    Column("$/h", number=True, more=True),
    Column("Requested", more=True),
    Column("Left because", more=True),
)


def body(context: PageContext, cache: ApiCache, page_data: PageData, name: str) -> Html:
    month = context.now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    since = {"since_us": int(month.timestamp() * 1e6)}
    nodes, costs, offers, history = cache.fetch(
        page_data,
        Query(routes.LIST_NODES(), {"provider": name, "limit": MOST}),
        Query(routes.COST_REPORT(), since, SOON_S),
        Query(routes.LIST_OFFERS(), {"cloud": name, "limit": 1000}, SELDOM_S),
        Query(routes.PRICE_HISTORY(), {"cloud": name, "since_s": 7 * DAY_S}, SELDOM_S),
    )
    if nodes is None:
        return card("machines", "Machines", el("p", "not known: there was no answer", cls="empty"))
    items = nodes["items"][::-1]
    rows = [_row(context, node) for node in items]
    note = f"The newest {MOST}, gone ones too." if len(items) == MOST else None
    machines = table(
        "Machines, the newest first",
        _MACHINES,
        rows,
        "No machine of this provider is on record.",
        [node["id"] for node in items],
    )
    return join(
        _tiles(items, costs, offers, name),
        card("machines", "Machines", machines, note=note),
        prices.by_region(context, history),
    )


def _row(context: PageContext, node: Data) -> list[Child]:
    return [
        context.machine(node),
        context.job(node["job_id"], node["job"]),
        place_words(node),
        sign(node["state"]),
        f"{money(node['price_usd_per_h'])}/h",
        context.age(node["requested_at"]),
        node["leave_text"] or node["leave_reason"] or node["launch_error"] or "-",
    ]


def _tiles(items: list[Data], costs: Data | None, offers: Data | None, name: str) -> Html:
    now = [node for node in items if node["state"] != "gone"]
    rate = sum(node["price_usd_per_h"] for node in now)
    paid = [row["total_usd"] for row in (costs or {"providers": []})["providers"]
            if row["provider"] == name]  # fmt: skip
    taken = sum(node["leave_reason"] in ("preempted", "lost") for node in items)
    tiles = [
        tile("Machines now", len(now), f"{money(rate)}/h"),
        tile("Paid this month", "?" if costs is None else money(sum(paid))),
        tile("Taken away", taken, f"of the newest {len(items)} machines"),
        tile("Offers", "?" if offers is None else offers["total"], "on sale now"),
    ]
    return el("dl", *tiles, cls="tiles", aria_label="At a glance")
