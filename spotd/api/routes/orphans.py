"""Machines that no job wants, and resources that machines left behind, held for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from providers.base import CapacityType
from providers.dollars import format_microusd
from spotd.api.request.request import ApiRequest, Check, bad_input, conflict
from spotd.api.views.resources import iso
from spotd.domain.events import Event, Severity
from spotd.domain.market import Market
from spotd.money.units import usd
from spotd.planner.core.orphan_policy import HeldLeftover, HeldMachine, OrphanAction, leftovers_of

NAMED = 5  # ids in one line
ADVICE = "spotctl orphans shows why they are held; spotctl orphans end ends them"
PriceKey = tuple[
    str, str, str, CapacityType
]  # the key of a price: provider, zone, type, capacity type


def list_orphans(call: ApiRequest) -> dict[str, Any]:
    """List the orphans of the last sweeps, machines first, longest held first.

    `usd_per_h` is the cost of these machines together, which is in no job's bill, without the
    `unpriced` ones that are not on sale now. The cost of disks and addresses is not known.
    """
    held = call.context.clouds.held()
    prices = _prices(call.context.market(call.now_us))
    microusd_per_h, unpriced = _total_price(held, prices)
    leftovers = call.context.clouds.held_leftovers()
    return {
        "kind": "OrphanList",
        "items": [*(_machine_data(item, prices) for item in held), *map(_leftover_data, leftovers)],
        "unswept": sorted(call.context.clouds.unlisted_providers()),
        "usd_per_h": usd(microusd_per_h),
        "unpriced": unpriced,
    }


def check_held(
    held: Sequence[HeldMachine], leftovers: Sequence[HeldLeftover], market: Market
) -> list[Check]:
    """Return failed checks for held resources that cost money and belong to no job; or none."""
    checks = []
    ids = [item.instance.instance_id for item in held if item.fate is OrphanAction.HOLD]
    if ids:
        microusd_per_h, unpriced = _total_price(held, _prices(market))
        others = f" and {unpriced} of unknown price" if unpriced else ""
        message = f"{_ids_text(ids)}: {format_microusd(microusd_per_h)}/h{others}, in no job's bill"
        checks.append(Check("held machines", False, message, ADVICE))
    ids = [item.leftover.leftover_id for item in leftovers if item.fate is OrphanAction.HOLD]
    if ids:
        message = f"{_ids_text(ids)}: disks, addresses and network cards without a machine"
        checks.append(Check("held leftovers", False, message, ADVICE))
    return checks


def _ids_text(ids: Sequence[str]) -> str:
    return ", ".join(ids[:NAMED]) + (f" and {len(ids) - NAMED} more" if len(ids) > NAMED else "")


def _prices(market: Market) -> dict[PriceKey, int]:
    return {
        (o.provider, o.zone, o.instance_type, o.capacity_type): o.price_microusd_per_h
        for o in market.offers
    }


def _price_key(held: HeldMachine) -> PriceKey:
    instance = held.instance
    return (held.provider, instance.zone, instance.instance_type, instance.capacity_type)


def _total_price(held: Sequence[HeldMachine], prices: Mapping[PriceKey, int]) -> tuple[int, int]:
    """Return the cost of machines of ours in micro-USD per hour, and how many have no price."""
    known_prices = [prices.get(_price_key(item)) for item in held if item.fate is OrphanAction.HOLD]
    return sum(price or 0 for price in known_prices), known_prices.count(None)


def end_orphans(call: ApiRequest) -> dict[str, Any]:
    """Release the held machines and leftovers, separately: the next sweep ends those that existed
    until now. Clouds without a held resource are not released, nor those that this daemon has not
    listed. `ids` are the machines that the caller saw: if others are held now, nothing is
    released."""
    held = [item for item in call.context.clouds.held() if item.fate is OrphanAction.HOLD]
    leftovers = [
        item for item in call.context.clouds.held_leftovers() if item.fate is OrphanAction.HOLD
    ]
    ids = [item.instance.instance_id for item in held]
    ids += [item.leftover.leftover_id for item in leftovers]
    _check_order(call, ids)
    store, now_us = call.context.store, call.now_us
    names = {item.provider for item in held} | {leftovers_of(item.provider) for item in leftovers}
    for name in sorted(names):
        store.orphans.release(name, now_us)
    actor = call.actor or "somebody"
    message = (
        f"{actor} released held resources: machines {len(held)}, leftovers {len(leftovers)}; "
        "the next sweep ends them"
    )
    event = Event(
        "orphans_released",
        message,
        severity=Severity.WARNING,
        data={"ids": ids, "actor": call.actor},
    )
    store.events.add("", event, now_us)
    return {"kind": "OrphansReleased", "items": ids, "count": len(ids)}


def _check_order(call: ApiRequest, ids: Sequence[str]) -> None:
    """Raise ApiError (conflict) where the request would end something other than intended."""
    reason = call.context.store.deployment.quarantine()
    if ids and reason:
        message = f"nothing is ended while the database is in quarantine: {reason}"
        raise conflict(message, "spotctl quarantine release, if nothing in the list is needed")
    expected = call.body.get("ids")
    if expected is None:
        return
    if not isinstance(expected, list) or not all(isinstance(item, str) for item in expected):
        raise bad_input("ids must be a list of texts", "use the daemon's own spotctl")
    unexpected = [item for item in ids if item not in expected]
    if unexpected:
        names = ", ".join(unexpected[:NAMED])
        message = (
            f"nothing is ended: {len(unexpected)} more are held now than you confirmed: {names}"
        )
        raise conflict(message, "check `spotctl orphans` again")


def _machine_data(held: HeldMachine, prices: Mapping[PriceKey, int]) -> dict[str, Any]:
    instance = held.instance
    price = prices.get(_price_key(held))
    return {
        "what": "machine",
        "id": instance.instance_id,
        "region": instance.region,
        "zone": instance.zone,
        "instance_type": instance.instance_type,
        "capacity_type": instance.capacity_type.value,
        "price_usd_per_h": None if price is None else usd(price),
        "launched_at": iso(instance.launched_at_us),
    } | _held_data(held, instance.tags)


def _leftover_data(held: HeldLeftover) -> dict[str, Any]:
    leftover = held.leftover
    return {
        "what": leftover.kind.value,
        "id": leftover.leftover_id,
        "region": leftover.region,
        "zone": leftover.zone,
        "price_usd_per_h": None,
        "left_at": iso(leftover.since_us),
    } | _held_data(held, leftover.tags)


def _held_data(held: HeldMachine | HeldLeftover, tags: Mapping[str, str]) -> dict[str, Any]:
    return {
        "provider": held.provider,
        "job": tags.get("spotd-job", ""),
        "generation": tags.get("spotd-generation", ""),
        "deployment": tags.get("spotd-deployment", ""),
        "ours": held.fate is OrphanAction.HOLD,
        "held_since": iso(held.since_us),
        "why": held.why,
    }
