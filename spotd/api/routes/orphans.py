"""Machines that no job wants, and what machines left behind, held for a person to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from providers.base import CapacityType
from spotd.api.request.request import ApiRequest, Check, bad_input, conflict
from spotd.api.views.resources import iso, usd
from spotd.domain.events import Event, Severity
from spotd.domain.market import Market
from spotd.planner.core.orphan_policy import HeldLeftover, HeldMachine, OrphanAction, leftovers_of

NAMED = 5  # of what is held, in one line
ADVICE = "spotctl orphans says why they are held; spotctl orphans end ends them"
Sold = tuple[str, str, str, CapacityType]  # what a price is of: provider, zone, type, capacity type


def list_orphans(call: ApiRequest) -> dict[str, Any]:
    """What the last looks showed: machines first, longest held first. `usd_per_h` is what those
    machines of ours cost together, which is in no job's bill, but for `unpriced` ones that are not
    on sale now; what a disk or an address costs is not known here."""
    held = call.backing.held()
    prices = _prices(call.backing.market(call.now_us))
    microusd_per_h, unpriced = _sum(held, prices)
    left = call.backing.held_leftovers()
    return {
        "kind": "OrphanList",
        "items": [*(_machine_data(item, prices) for item in held), *map(_leftover_data, left)],
        "unswept": sorted(call.backing.unswept()),
        "usd_per_h": usd(microusd_per_h),
        "unpriced": unpriced,
    }


def check_held(
    held: Sequence[HeldMachine], left: Sequence[HeldLeftover], market: Market
) -> list[Check]:
    """The doctor's lines about what is paid for and wanted by nobody; none without any."""
    found = []
    ids = [item.instance.instance_id for item in held if item.fate is OrphanAction.HOLD]
    if ids:
        microusd_per_h, unpriced = _sum(held, _prices(market))
        many = f" and {unpriced} of unknown price" if unpriced else ""
        text = f"{_named(ids)}: ${usd(microusd_per_h):,.2f}/h{many}, in no job's bill"
        found.append(Check("held machines", False, text, ADVICE))
    ids = [item.leftover.leftover_id for item in left if item.fate is OrphanAction.HOLD]
    if ids:
        text = f"{_named(ids)}: disks, addresses and cards that hang on no machine"
        found.append(Check("held leftovers", False, text, ADVICE))
    return found


def _named(ids: Sequence[str]) -> str:
    return ", ".join(ids[:NAMED]) + (f" and {len(ids) - NAMED} more" if len(ids) > NAMED else "")


def _prices(market: Market) -> dict[Sold, int]:
    return {
        (o.provider, o.zone, o.instance_type, o.capacity_type): o.price_microusd_per_h
        for o in market.offers
    }


def _sold(held: HeldMachine) -> Sold:
    instance = held.instance
    return (held.provider, instance.zone, instance.instance_type, instance.capacity_type)


def _sum(held: Sequence[HeldMachine], prices: Mapping[Sold, int]) -> tuple[int, int]:
    """What those of ours cost, microusd per hour, and how many have no price."""
    found = [prices.get(_sold(item)) for item in held if item.fate is OrphanAction.HOLD]
    return sum(price or 0 for price in found), found.count(None)


def end_orphans(call: ApiRequest) -> dict[str, Any]:
    """Release what was there until now in clouds where something is held, machines and leftovers
    each by itself: the next sweep ends it. Others' stay, and those in clouds that nobody could see
    here. With `ids`, what the caller saw in the list, only if nothing else is held by now."""
    held = [item for item in call.backing.held() if item.fate is OrphanAction.HOLD]
    left = [item for item in call.backing.held_leftovers() if item.fate is OrphanAction.HOLD]
    ids = [item.instance.instance_id for item in held]
    ids += [item.leftover.leftover_id for item in left]
    _check_order(call, ids)
    store, now_us = call.backing.store, call.now_us
    names = {item.provider for item in held} | {leftovers_of(item.provider) for item in left}
    for name in sorted(names):
        store.release_orphans(name, now_us)
    who = call.actor or "somebody"
    text = (
        f"{who} released what was held: machines {len(held)}, leftovers {len(left)}; the next "
        "sweep ends them"
    )
    event = Event(
        "orphans_released", text, severity=Severity.WARNING, data={"ids": ids, "actor": call.actor}
    )
    store.add_event("", event, now_us)
    return {"kind": "OrphansReleased", "items": ids, "count": len(ids)}


def _check_order(call: ApiRequest, ids: Sequence[str]) -> None:
    """Raises ApiError (conflict) where it would do something else than what was meant."""
    reason = call.backing.store.quarantine()
    if ids and reason:
        text = f"nothing is ended while the database is in quarantine: {reason}"
        raise conflict(text, "spotctl quarantine release, when nothing in the list is wanted")
    seen = call.body.get("ids")
    if seen is None:
        return
    if not isinstance(seen, list) or not all(isinstance(item, str) for item in seen):
        raise bad_input("ids must be a list of texts", "use the daemon's own spotctl")
    news = [item for item in ids if item not in seen]
    if news:
        named = ", ".join(news[:NAMED])
        text = f"nothing is ended: {len(news)} more than you saw are held by now: {named}"
        raise conflict(text, "look at `spotctl orphans` again")


def _machine_data(held: HeldMachine, prices: Mapping[Sold, int]) -> dict[str, Any]:
    instance = held.instance
    price = prices.get(_sold(held))
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
    left = held.leftover
    return {
        "what": left.kind.value,
        "id": left.leftover_id,
        "region": left.region,
        "zone": left.zone,
        "price_usd_per_h": None,
        "left_at": iso(left.since_us),
    } | _held_data(held, left.tags)


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
