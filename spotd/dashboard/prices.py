"""The prices page: what is on sale in each pool, and how its price changed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from spotd.api_routes import routes
from spotd.base.text import money, percent
from spotd.dashboard.api_cache import SELDOM_S, ApiCache, PageData, Query
from spotd.dashboard.components import Column, PageContext, card, count, table, where
from spotd.dashboard.html import Child, Html, el, join
from spotd.plots import svg

Data = dict[str, Any]
DAY_S = 86_400
MOST = 100
FILTERS = ("gpus", "capacity", "cloud")
_KINDS = ("", "spot", "on_demand", "reserved")
_WIDTH, _HEIGHT = 120, 24
_COLUMNS = (
    Column("Pool"),
    Column("Machine", more=True),
    Column("GPUs", more=True),
    Column("As"),
    Column("$/h", number=True),
    Column("$ per GPU-hour", number=True, more=True),
    Column("Below on demand", number=True, more=True),
    Column("24 h", number=True, tip="Change of the price since a day ago", more=True),
    Column("The last 24 h", more=True),
    Column("Available"),
)


def body(
    context: PageContext, cache: ApiCache, page_data: PageData, query: Mapping[str, str]
) -> Html:
    wanted = {name: query[name] for name in FILTERS if query.get(name)}
    offers, history, week = cache.fetch(
        page_data,
        Query(routes.LIST_OFFERS(), {**wanted, "sort": "gpu", "limit": MOST}, SELDOM_S),
        Query(routes.PRICE_HISTORY(), {**wanted, "since_s": DAY_S}, SELDOM_S),
        Query(routes.PRICE_HISTORY(), {**wanted, "since_s": 7 * DAY_S}, SELDOM_S),
    )
    if offers is None:
        empty: Child = el("p", "not known: there was no answer", cls="empty")
        return card("prices", "On sale now", _form(wanted), empty)
    history_by_key = {row["key"]: row for row in (history or {"items": []})["items"]}
    rows = [_row(offer, history_by_key.get(offer["key"]), context.now) for offer in offers["items"]]
    keys = [offer["key"] for offer in offers["items"]]
    empty_text = join(
        "No cloud offers a machine that fits. Answers of the clouds: ", context.spotctl("doctor")
    )
    shown = f"{count(offers['total'], 'offer')}, the cheapest GPU first"
    not_shown = offers["total"] - len(rows)
    note = join(
        f"{shown}{f'; {not_shown} more are not shown' if not_shown > 0 else ''}. ",
        context.spotctl("offers"),
    )
    offer_table = table("Offers by pool", _COLUMNS, rows, empty_text, keys)
    return join(
        card("prices", "On sale now", _form(wanted), offer_table, note=note),
        by_region(context, week),
    )


_REGIONS = (
    Column("Region"),
    Column("GPUs"),
    Column("As"),
    Column("Now", number=True, tip="The cheapest price of a GPU-hour, or of a machine-hour"),
    Column("Lowest, 7 days", number=True, more=True),
    Column("Highest, 7 days", number=True, more=True),
    Column("The last 7 days", more=True),
    Column("Pools", number=True, more=True),
)


def by_region(context: PageContext, history: Data | None) -> Html:
    """Return the cheapest price of each GPU in each region, and its history of seven days."""
    title = "Prices by region"
    if history is None:
        return card("regions", title, el("p", "not known: there was no answer", cls="empty"))
    groups: dict[tuple[str, str, str], list[Data]] = {}
    for offer in history["items"]:
        gpu = offer["accelerator"] or "no GPU"
        region = f"{offer['provider']}/{offer['region']}"
        groups.setdefault((gpu, region, offer["capacity_type"]), []).append(offer)
    rows = [_region_row(context, key, offers) for key, offers in sorted(groups.items())]
    keys = ["/".join(key) for key in sorted(groups)]
    note = "By GPU-hour, from prices on record. The history is of the pool that is cheapest now."
    return card("regions", title, table(title, _REGIONS, rows, "No prices are on record.", keys),
                note=note)  # fmt: skip


def _region_row(context: PageContext, key: tuple[str, str, str], offers: list[Data]) -> list[Child]:
    gpu, region, capacity = key
    cheapest = min(offers, key=lambda offer: _each(offer, offer["price_usd_per_h"]))
    past = [
        _each(offer, point["price_usd_per_h"]) for offer in offers for point in offer["points"]
    ] or [_each(cheapest, cheapest["price_usd_per_h"])]
    own = [
        {**point, "price_usd_per_h": _each(cheapest, point["price_usd_per_h"])}
        for point in cheapest["points"]
    ]
    return [
        region,
        gpu,
        capacity.replace("_", " "),
        f"{money(_each(cheapest, cheapest['price_usd_per_h']))}/h",
        money(min(past)),
        money(max(past)),
        _spark({"points": own}, context.now, 7 * DAY_S),
        len(offers),
    ]


def _each(offer: Data, usd_per_h: float) -> float:
    """Return the price of one GPU, or of the machine where it has none."""
    gpus: int = offer["accelerator_count"]
    return usd_per_h / max(1, gpus)


def _form(wanted: Mapping[str, str]) -> Html:
    chosen = wanted.get("capacity", "")
    kinds = (el("option", kind or "any", value=kind, selected=kind == chosen) for kind in _KINDS)
    return el(
        "form",
        el("label", "GPUs ", el("input", name="gpus", value=wanted.get("gpus", ""),
                                placeholder="H100:8", size=10)),
        el("label", "Sold as ", el("select", *kinds, name="capacity")),
        el("button", "Show"),
        method="get",
        cls="filter",
    )  # fmt: skip


def _row(offer: Data, history: Data | None, now: datetime) -> list[Child]:
    gpus = offer["accelerator_count"]
    change = history["change_24h"] if history else None
    return [
        where(offer) + (" (local)" if offer["local"] else ""),
        offer["instance_type"],
        f"{gpus}x{offer['accelerator']}" if offer["accelerator"] else "-",
        offer["capacity_type"].replace("_", " "),
        f"{money(offer['price_usd_per_h'])}/h",
        money(offer["price_usd_per_h"] / gpus) if gpus else "-",
        percent(offer["discount"]),
        "-" if change is None else f"{change * 100:+.1f} %",
        _spark(history, now) if history else "-",
        _availability(offer),
    ]


def _availability(offer: Data) -> Child:
    reason = offer["excluded"] or offer["silent"]
    if reason:
        return f"no: {reason}"
    return "yes, without a discount worth the name" if offer["no_discount"] else "yes"


def _spark(history: Data, now: datetime, span_s: float = DAY_S) -> Child:
    """Return the price as a step curve up to now, and its range as text."""
    points = [
        (datetime.fromisoformat(point["at"]), float(point["price_usd_per_h"]))
        for point in history["points"]
    ]
    if not points:
        return "-"
    low, high = (pick(price for _, price in points) for pick in (min, max))
    if low == high:
        return el("span", "unchanged", cls="none")

    def at(when: datetime) -> float:
        return max(0.0, 1 - (now - when).total_seconds() / span_s) * (_WIDTH - 4) + 2

    def height(price: float) -> float:
        return 3 + (_HEIGHT - 6) * (1 - (price - low) / (high - low))

    line: list[tuple[float, float]] = []
    for (when, price), (until, _) in zip(points, [*points[1:], (now, 0.0)], strict=True):
        line += [(at(when), height(price)), (at(until), height(price))]
    label = f"{money(low)} to {money(high)} an hour"
    drawn = Html(svg.curve(line, "currentColor"))
    box = f"0 0 {_WIDTH} {_HEIGHT}"
    picture = el(
        "svg", drawn, viewBox=box, width=_WIDTH, height=_HEIGHT, role="img", aria_label=label
    )
    return (picture, " ", el("span", label, cls="none"))
