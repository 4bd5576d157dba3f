"""The page of prices: what is on sale in each pool, and how its price moved."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

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
    Column("Machine"),
    Column("GPUs"),
    Column("As"),
    Column("$/h", number=True),
    Column("$ per GPU-hour", number=True),
    Column("Below on demand", number=True),
    Column("24 h", number=True, tip="By how much the price differs from that of a day ago"),
    Column("The last 24 h"),
    Column("To be had"),
)


def body(place: PageContext, source: ApiCache, reading: PageData, query: Mapping[str, str]) -> Html:
    wanted = {name: query[name] for name in FILTERS if query.get(name)}
    offers, history = source.ask(
        reading,
        Query("/v1/offers", {**wanted, "sort": "gpu", "limit": MOST}, SELDOM_S),
        Query("/v1/prices", {**wanted, "since_s": DAY_S}, SELDOM_S),
    )
    if offers is None:
        empty: Child = el("p", "not known: there was no answer", cls="empty")
        return card("prices", "On sale now", _form(wanted), empty)
    moved = {one["key"]: one for one in (history or {"items": []})["items"]}
    rows = [_row(one, moved.get(one["key"]), place.now) for one in offers["items"]]
    keys = [one["key"] for one in offers["items"]]
    nothing = join("No cloud sells what fits. What each answers: ", place.spotctl("doctor"))
    shown = f"{count(offers['total'], 'offer')}, the cheapest GPU first"
    rest = offers["total"] - len(rows)
    note = join(
        f"{shown}{f'; {rest} more are not shown' if rest > 0 else ''}. ", place.spotctl("offers")
    )
    told = table("Offers by pool", _COLUMNS, rows, nothing, keys)
    return card("prices", "On sale now", _form(wanted), told, note=note)


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


def _row(one: Data, moved: Data | None, now: datetime) -> list[Child]:
    gpus = one["accelerator_count"]
    change = moved["change_24h"] if moved else None
    return [
        where(one) + (" (local)" if one["local"] else ""),
        one["instance_type"],
        f"{gpus}x{one['accelerator']}" if one["accelerator"] else "-",
        one["capacity_type"],
        f"{money(one['price_usd_per_h'])}/h",
        money(one["price_usd_per_h"] / gpus) if gpus else "-",
        percent(one["discount"]),
        "-" if change is None else f"{change * 100:+.1f} %",
        _spark(moved, now) if moved else "-",
        _had(one),
    ]


def _had(one: Data) -> Child:
    told = one["excluded"] or one["silent"]
    if told:
        return f"no: {told}"
    return "yes, without a discount worth the name" if one["no_discount"] else "yes"


def _spark(moved: Data, now: datetime) -> Child:
    """The price as a stair, up to now; its range in words."""
    points = [
        (datetime.fromisoformat(one["at"]), float(one["price_usd_per_h"]))
        for one in moved["points"]
    ]
    if not points:
        return "-"
    low, high = (pick(price for _, price in points) for pick in (min, max))
    if low == high:
        return el("span", "unchanged", cls="none")

    def at(when: datetime) -> float:
        return max(0.0, 1 - (now - when).total_seconds() / DAY_S) * (_WIDTH - 4) + 2

    def height(price: float) -> float:
        return 3 + (_HEIGHT - 6) * (1 - (price - low) / (high - low))

    line: list[tuple[float, float]] = []
    for (when, price), (until, _) in zip(points, [*points[1:], (now, 0.0)], strict=True):
        line += [(at(when), height(price)), (at(until), height(price))]
    words = f"{money(low)} to {money(high)} an hour"
    drawn = Html(svg.curve(line, "currentColor"))
    box = f"0 0 {_WIDTH} {_HEIGHT}"
    picture = el(
        "svg", drawn, viewBox=box, width=_WIDTH, height=_HEIGHT, role="img", aria_label=words
    )
    return (picture, " ", el("span", words, cls="none"))
