"""Capacity reservation groups that the configuration names, and what of them is free. spotd never
makes one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from providers.azure.clients import Clients
from providers.azure.codes import NOBODYS
from providers.azure.listing import region_of

# What Azure says of a group that is gone, and of one that we may not read: both are the group's.
NOT_OURS = NOBODYS | {"ResourceGroupNotFound", "AuthorizationFailed"}

_ID = re.compile(
    r"/subscriptions/[^/]+/resourceGroups/(?P<group>[^/]+)/providers/Microsoft\.Compute"
    r"/capacityReservationGroups/(?P<name>[^/]+)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Reserved:
    """One reservation with machines to spare; `zone` "" is the regional pool, `group` the id of the
    capacity reservation group that a machine names."""

    group: str
    region: str
    zone: str
    size: str


def free(clients: Clients, ident: str) -> Iterator[Reserved]:
    """Of the group of that resource id. Raises ProviderError, ValueError for what is no id."""
    found = _ID.fullmatch(ident)
    if found is None:
        raise ValueError(f"{ident!r} is no id of a capacity reservation group")
    group, name = found["group"], found["name"]
    rows = clients.compute(
        lambda c: [
            one.as_dict()
            for one in c.capacity_reservations.list_by_capacity_reservation_group(group, name)
        ]
    )
    if not rows:
        return
    whole = clients.compute(
        lambda c: c.capacity_reservation_groups.get(group, name, expand="instanceView").as_dict()
    )
    used = _used(whole)
    for row in rows:
        sku = row.get("sku") or {}
        if int(sku.get("capacity") or 0) > used.get(str(row.get("name")), 0):
            zone = next(iter(row.get("zones") or ()), "")
            yield Reserved(ident, region_of(row), str(zone), str(sku.get("name")))


def _used(group: Mapping[str, Any]) -> dict[str, int]:
    """Machines that run in each reservation, by its name."""
    view = (group.get("properties") or {}).get("instanceView") or {}
    return {
        str(one.get("name")): len(
            (one.get("utilizationInfo") or {}).get("virtualMachinesAllocated") or ()
        )
        for one in view.get("capacityReservations") or ()
    }
