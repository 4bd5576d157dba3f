"""The route for machine usage, hour by hour."""

from __future__ import annotations

from typing import Any

from providers.base import CapacityType
from spotd.api.request.request import ApiRequest
from spotd.api.views.resources import iso
from spotd.domain.units import US_PER_H, S
from spotd.money.commitment import by_hour, mean_price
from spotd.store.ledger import stretch_of

YEAR_S = 365 * 86_400
MOST_S = 3 * 366 * 86_400


def machine_use(call: ApiRequest) -> dict[str, Any]:
    """Machines in use in each whole hour (UTC) of the last `since_s` seconds, from the first that
    is on record, by cloud, region and type: pairs of on demand and on spot. Those out of a
    reservation are paid for already, and left out; so are local ones."""
    now_us = call.now_us
    since_us = now_us - call.number("since_s", YEAR_S, 1, MOST_S) * S
    rows = [
        row
        for row in call.context.store.ledger.segments()
        if row.state != "void" and (not row.end_us or row.end_us > since_us)
    ]
    nodes = {n.id: n for n in call.context.store.nodes.find(sorted({row.node_id for row in rows}))}
    usage: dict[tuple[str, str, str], list[tuple[int, int, bool]]] = {}
    spot_prices: dict[tuple[str, str, str], list[tuple[float, int]]] = {}
    list_prices: dict[tuple[str, str, str], list[tuple[float, int]]] = {}
    for row in rows:
        node, stretch = nodes.get(row.node_id), stretch_of(row, now_us)
        if node is None or node.offer.local or stretch.prepaid or stretch.end_us <= since_us:
            continue
        offer = node.offer
        key = (offer.cloud or offer.provider, offer.region, offer.instance_type)
        spot = offer.capacity_type is CapacityType.SPOT
        usage.setdefault(key, []).append((stretch.start_us, stretch.end_us, spot))
        hours = (stretch.end_us - max(stretch.start_us, since_us)) / US_PER_H
        list_prices.setdefault(key, []).append((hours, row.list_rate_microusd_per_h))
        if spot:
            spot_prices.setdefault(key, []).append((hours, row.rate_microusd_per_h))
    starts_us = [start_us for spans in usage.values() for start_us, _, _ in spans]
    first_hour_us = max(since_us, min(starts_us, default=now_us))
    items = [
        {
            **dict(zip(("cloud", "region", "instance_type"), key, strict=True)),
            "on_demand_usd_per_h": mean_price(list_prices[key]) or None,
            "spot_usd_per_h": mean_price(spot_prices.get(key, ())) or None,
            "hours": [
                [round(use.on_demand, 6), round(use.spot, 6)]
                for use in by_hour(usage[key], first_hour_us, now_us)
            ],
        }
        for key in sorted(usage)
    ]
    return {"kind": "MachineUse", "since": iso(first_hour_us), "until": iso(now_us), "items": items}
