"""Routes about offers and their prices, now and in the past."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from providers.base import CapacityType, Offer, OfferRequest
from spotd.api.request.request import ApiRequest, bad_input
from spotd.api.views.resources import iso, offer_data
from spotd.domain.job import CheckpointSpec, JobProgram, JobResources, JobSpec
from spotd.domain.units import S
from spotd.history.price_moves import DAY_S, price_move
from spotd.money.units import usd
from spotd.planner.placement.rank import RankedOffer, rank
from spotd.spec.quantities import parse_accelerators
from spotd.store.market import PricePoint

MOST_HISTORIES = 200
YEAR_S = 366 * 86_400
_ALL = tuple(CapacityType)


def list_offers(call: ApiRequest) -> dict[str, Any]:
    """List matching offers, cheapest first, with the reason where one is unavailable now.

    `sort` is "price", "gpu" (price per accelerator) or "discount". `total` counts all that fit.
    """
    ranked, sort = _ranked(call), call.query.get("sort") or "price"
    if sort not in _SORTS:
        raise bad_input(f"sort must be price, gpu or discount, not {sort!r}", "leave sort out")
    ranked.sort(key=lambda row: (_SORTS[sort](row.offer), row.offer.key))
    limit = call.number("limit", 100, 1, 10_000)
    silent = call.context.clouds.silent_providers()
    items = [
        {
            **offer_data(row.offer),
            "excluded": row.excluded,
            "silent": silent.get(row.offer.provider, ""),
        }
        for row in ranked[:limit]
    ]
    return {"kind": "OfferList", "items": items, "total": len(ranked), "sort": sort}


def price_history(call: ApiRequest) -> dict[str, Any]:
    """How the price of each offer that fits moved in the last `since_s` seconds, the cheapest now
    first; at most MOST_HISTORIES of them. The first point of one may be older than that: it is the
    price that was in force. `change_24h` is the share by which it differs from a day ago,
    `z_score_24h` how many standard deviations from that day's mean; None before a day is on
    record."""
    since_s = call.number("since_s", 86_400, 1, YEAR_S)
    offers = sorted((row.offer for row in _ranked(call)), key=_price)[:MOST_HISTORIES]
    since_us = call.now_us - since_s * S
    day_us = call.now_us - round(DAY_S * S)
    points: dict[str, list[PricePoint]] = {}
    keys = [offer.key for offer in offers]
    for point in call.context.store.market.price_history(keys, min(since_us, day_us)):
        points.setdefault(point.offer_key, []).append(point)
    items = [_history(call, offer, points.get(offer.key, []), since_us) for offer in offers]
    return {"kind": "PriceHistory", "items": items, "since": iso(since_us), "now": iso(call.now_us)}


def _history(
    call: ApiRequest, offer: Offer, points: list[PricePoint], since_us: int
) -> dict[str, Any]:
    change = price_move(
        [(point.at_us, point.price_microusd_per_h) for point in points], call.now_us
    )
    older = sum(point.at_us <= since_us for point in points)
    return {
        **offer_data(offer),
        "points": [_point(point) for point in points[max(older - 1, 0) :]],
        "change_24h": round(change.change, 4) if change else None,
        "z_score_24h": round(change.z_score, 2) if change else None,
    }


def _ranked(call: ApiRequest) -> list[RankedOffer]:
    """Return everything on sale that the query matches, ranked without a job's requirements."""
    query = call.query
    request = OfferRequest(
        cloud=query.get("cloud", ""),
        region=query.get("region", ""),
        zone=query.get("zone", ""),
        instance_type=query.get("type", ""),
        capacity_types=_capacities(call),
    )
    market = call.context.market(call.now_us)
    no_checkpoints = CheckpointSpec(store="", engine="none")
    alternatives = _alternatives(request, query.get("gpus", ""))
    spec = JobSpec(
        name="",
        program=JobProgram(run=""),
        resources=JobResources(alternatives=alternatives),
        checkpoint=no_checkpoints,
    )
    return rank(spec, market, call.now_us)


def _alternatives(request: OfferRequest, gpus: str) -> tuple[OfferRequest, ...]:
    if not gpus:
        return (request,)
    try:
        options = parse_accelerators(gpus).options
    except ValueError as error:
        raise bad_input(f"gpus: {error}", "write one like H100:8") from None
    return tuple(replace(request, accelerator=name, accelerator_count=n) for name, n in options)


def _capacities(call: ApiRequest) -> tuple[CapacityType, ...]:
    capacity = call.query.get("capacity", "")
    try:
        return (CapacityType(capacity),) if capacity else _ALL
    except ValueError:
        known = ", ".join(kind.value for kind in _ALL)
        raise bad_input(
            f"capacity must be one of {known}, not {capacity!r}", "leave it out"
        ) from None


def _price(offer: Offer) -> float:
    return offer.price_microusd_per_h


def _price_per_accelerator(offer: Offer) -> float:
    """Return the price per accelerator; machines without any come last."""
    count = offer.accelerator_count
    return offer.price_microusd_per_h / count if count else float("inf")


def _price_share(offer: Offer) -> float:
    """Return the share of the on-demand price; offers without a known one come last."""
    list_price = offer.list_microusd_per_h
    return offer.price_microusd_per_h / list_price if list_price else float("inf")


_SORTS = {"price": _price, "gpu": _price_per_accelerator, "discount": _price_share}


def _point(point: PricePoint) -> dict[str, Any]:
    return {
        "at": iso(point.at_us),
        "price_usd_per_h": usd(point.price_microusd_per_h),
        "list_usd_per_h": usd(point.list_microusd_per_h),
        "source": point.price_source,
    }
