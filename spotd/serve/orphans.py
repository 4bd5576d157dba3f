"""Machines that no job wants and that are held for a person to look at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from providers.base import CapacityType
from spotd.decide.sweeping import Fate, Held
from spotd.model import Event, Severity
from spotd.serve.call import Call
from spotd.serve.views import iso, usd


def list_orphans(call: Call) -> dict[str, Any]:
    """What the last listings showed, longest held first."""
    market = call.backing.market(call.now_us)
    prices = {
        (o.provider, o.zone, o.instance_type, o.capacity_type): o.price_microusd_per_h
        for o in market.offers
    }
    items = [_held_data(held, prices) for held in call.backing.held()]
    return {"kind": "OrphanList", "items": items, "unswept": sorted(call.backing.unswept())}


def end_orphans(call: Call) -> dict[str, Any]:
    """Release what was launched until now in clouds where something is held: the next sweep ends
    it. Others' machines stay, and those in clouds that nobody could see here."""
    held = [held for held in call.backing.held() if held.fate is Fate.HOLD]
    store, now_us = call.backing.store, call.now_us
    for provider in sorted({item.provider for item in held}):
        store.release_orphans(provider, now_us)
    who = call.actor or "somebody"
    text = f"{who} released {len(held)} held machines: the next sweep ends them"
    data = {"instances": [item.instance.instance_id for item in held], "actor": call.actor}
    store.add_event(
        "", Event("orphans_released", text, severity=Severity.WARNING, data=data), now_us
    )
    return {"kind": "OrphansReleased", "items": data["instances"], "count": len(held)}


def _held_data(
    held: Held, prices: Mapping[tuple[str, str, str, CapacityType], int]
) -> dict[str, Any]:
    instance, tags = held.instance, held.instance.tags
    sold = (held.provider, instance.zone, instance.instance_type, instance.capacity_type)
    price = prices.get(sold)
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
