"""The route for observations of spot pools, from which traces are made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from providers.base import CapacityType, Offer
from spotd.api.request.request import ApiRequest, bad_input
from spotd.api.routes.stats import MOST_S
from spotd.api.views.resources import iso
from spotd.domain.units import S
from spotd.history.traces import PoolObservations, observations
from spotd.planner.spot_policy.pool_history import pool_of
from spotd.spec.quantities import parse_accelerators
from spotd.store.interface import Store
from spotd.store.market import PricePoint

QUARTER_S = 90 * 86_400

Kind = tuple[str, int]  # an accelerator, and its count per machine


def traces(call: ApiRequest) -> dict[str, Any]:
    """Return the observations of spot pools in the last `since_s` seconds.

    For each pool (only machines with `gpus`, if given): when its machines were held, when it
    refused a request or took a machine away, and its price changes. `unseen` lists pools of the
    same kinds that are on sale and were never requested. Times are microseconds since the epoch.
    """
    since_us = call.now_us - call.number("since_s", QUARTER_S, 1, MOST_S) * S
    offers = call.context.market(call.now_us).offers
    wanted = _wanted(call.query.get("gpus", ""))
    return pool_observations_data(call.context.store, offers, wanted, since_us, call.now_us)


def pool_observations_data(
    store: Store, offers: Iterable[Offer], wanted: Kind | None, since_us: int, now_us: int
) -> dict[str, Any]:
    """Return the reply, for `offers` on sale."""
    pools = [
        pool
        for pool in observations(store.node_history.machine_lives(since_us))
        if _fits(pool, wanted)
    ]
    kinds = {(pool.accelerator, pool.accelerator_count) for pool in pools}
    kinds |= {wanted} if wanted else set()
    spot = {
        pool_of(offer): offer
        for offer in offers
        if offer.capacity_type is CapacityType.SPOT
        and (offer.accelerator, offer.accelerator_count) in kinds
    }
    unseen = sorted(spot.keys() - {pool.pool for pool in pools})
    keys = [f"{pool.pool}/{capacity}" for pool in pools for capacity in ("spot", "on_demand")]
    points: dict[str, list[PricePoint]] = {}
    for point in store.market.price_history(keys, since_us):
        points.setdefault(point.offer_key, []).append(point)
    return {
        "kind": "Sightings",
        "since": iso(since_us),
        "until": iso(now_us),
        "since_us": since_us,
        "until_us": now_us,
        "items": [_item(pool, points) for pool in pools],
        "unseen": [
            {
                "pool": pool,
                "accelerator": spot[pool].accelerator,
                "accelerator_count": spot[pool].accelerator_count,
            }
            for pool in unseen
        ],
    }


def _wanted(gpus: str) -> Kind | None:
    if not gpus:
        return None
    try:
        return parse_accelerators(gpus).options[0]
    except ValueError as error:
        raise bad_input(f"gpus: {error}", "write one like H100:8") from None


def _fits(pool: PoolObservations, wanted: Kind | None) -> bool:
    kind = (pool.accelerator, pool.accelerator_count)
    return bool(pool.accelerator) if wanted is None else kind == wanted


def _item(pool: PoolObservations, points: dict[str, list[PricePoint]]) -> dict[str, Any]:
    spot = points.get(f"{pool.pool}/spot", [])
    on_demand = points.get(f"{pool.pool}/on_demand", [])
    return {
        **vars(pool),
        "spot_microusd_per_h": _prices((p.at_us, p.price_microusd_per_h) for p in spot),
        # Where on-demand is not on sale itself, use the list price that comes with the spot price.
        "on_demand_microusd_per_h": _prices((p.at_us, p.price_microusd_per_h) for p in on_demand)
        or _prices((p.at_us, p.list_microusd_per_h) for p in spot),
    }


def _prices(points: Iterable[tuple[int, int]]) -> Sequence[Sequence[int]]:
    return [[at_us, price] for at_us, price in points if price > 0]
