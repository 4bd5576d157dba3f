"""Machines that no job wants and that are held for a person to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from providers.base import CapacityType
from spotd.decide.sweeping import Fate, Held
from spotd.model import Event, Market, Severity
from spotd.serve.call import Call, Check, bad_input, conflict
from spotd.serve.views import iso, usd

NAMED = 5  # machines that one line names
Sold = tuple[str, str, str, CapacityType]  # what a price is of: provider, zone, type, capacity type


def list_orphans(call: Call) -> dict[str, Any]:
    """What the last listings showed, longest held first. `usd_per_h` is what those of ours cost
    together, which is in no job's bill, but for `unpriced` ones that are not on sale now."""
    held = call.backing.held()
    prices = _prices(call.backing.market(call.now_us))
    microusd_per_h, unpriced = _sum(held, prices)
    return {
        "kind": "OrphanList",
        "items": [_held_data(item, prices) for item in held],
        "unswept": sorted(call.backing.unswept()),
        "usd_per_h": usd(microusd_per_h),
        "unpriced": unpriced,
    }


def check_held(held: Sequence[Held], market: Market) -> list[Check]:
    """The doctor's line about what is paid for and wanted by nobody; none when there is nothing."""
    ids = [item.instance.instance_id for item in held if item.fate is Fate.HOLD]
    if not ids:
        return []
    microusd_per_h, unpriced = _sum(held, _prices(market))
    named = ", ".join(ids[:NAMED]) + (f" and {len(ids) - NAMED} more" if len(ids) > NAMED else "")
    text = f"{named}: ${usd(microusd_per_h):,.2f}/h{_and_unpriced(unpriced)}, in no job's bill"
    advice = "spotctl orphans says why they are held; spotctl orphans end ends them"
    return [Check("held machines", False, text, advice)]


def _and_unpriced(count: int) -> str:
    return f" and {count} of unknown price" if count else ""


def _prices(market: Market) -> dict[Sold, int]:
    return {
        (o.provider, o.zone, o.instance_type, o.capacity_type): o.price_microusd_per_h
        for o in market.offers
    }


def _sold(held: Held) -> Sold:
    instance = held.instance
    return (held.provider, instance.zone, instance.instance_type, instance.capacity_type)


def _sum(held: Sequence[Held], prices: Mapping[Sold, int]) -> tuple[int, int]:
    """What those of ours cost, microusd per hour, and how many have no price."""
    found = [prices.get(_sold(item)) for item in held if item.fate is Fate.HOLD]
    return sum(price or 0 for price in found), found.count(None)


def end_orphans(call: Call) -> dict[str, Any]:
    """Release what was launched until now in clouds where something is held: the next sweep ends
    it. Others' machines stay, and those in clouds that nobody could see here. With `instances`,
    what the caller saw in the list, only if no other is held by now."""
    held = [held for held in call.backing.held() if held.fate is Fate.HOLD]
    store, now_us = call.backing.store, call.now_us
    _check_order(call, held)
    for provider in sorted({item.provider for item in held}):
        store.release_orphans(provider, now_us)
    who = call.actor or "somebody"
    text = f"{who} released {len(held)} held machines: the next sweep ends them"
    data = {"instances": [item.instance.instance_id for item in held], "actor": call.actor}
    store.add_event(
        "", Event("orphans_released", text, severity=Severity.WARNING, data=data), now_us
    )
    return {"kind": "OrphansReleased", "items": data["instances"], "count": len(held)}


def _check_order(call: Call, held: Sequence[Held]) -> None:
    """Raises ApiError (conflict) where it would do something else than what was meant."""
    reason = call.backing.store.quarantine()
    if held and reason:
        text = f"nothing is ended while the database is in quarantine: {reason}"
        raise conflict(text, "spotctl quarantine release, when nothing in the list is wanted")
    seen = call.body.get("instances")
    if seen is None:
        return
    if not isinstance(seen, list) or not all(isinstance(item, str) for item in seen):
        raise bad_input("instances must be a list of texts", "use the daemon's own spotctl")
    news = [held.instance.instance_id for held in held if held.instance.instance_id not in seen]
    if news:
        named = ", ".join(news[:NAMED])
        text = f"nothing is ended: {len(news)} more than you saw are held by now: {named}"
        raise conflict(text, "look at `spotctl orphans` again")


def _held_data(held: Held, prices: Mapping[Sold, int]) -> dict[str, Any]:
    instance, tags = held.instance, held.instance.tags
    price = prices.get(_sold(held))
    return {
        "provider": held.provider,
        "instance": instance.instance_id,
        "region": instance.region,
        "zone": instance.zone,
        "instance_type": instance.instance_type,
        "capacity_type": instance.capacity_type.value,
        "price_usd_per_h": None if price is None else usd(price),
        "job": tags.get("spotd-job", ""),
        "generation": tags.get("spotd-generation", ""),
        "deployment": tags.get("spotd-deployment", ""),
        "ours": held.fate is Fate.HOLD,
        "launched_at": iso(instance.launched_at_us),
        "held_since": iso(held.since_us),
        "why": held.why,
    }
