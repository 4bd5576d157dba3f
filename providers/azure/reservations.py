"""Free capacity in the capacity reservation groups that the configuration names. spotd never
creates one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from providers.azure.clients import Clients
from providers.azure.codes import NOT_FOUND
from providers.azure.listing import region_of

# Error codes for a group that is gone or not readable.
INACCESSIBLE = NOT_FOUND | {"ResourceGroupNotFound", "AuthorizationFailed"}

_ID = re.compile(
    r"/subscriptions/[^/]+/resourceGroups/(?P<group>[^/]+)/providers/Microsoft\.Compute"
    r"/capacityReservationGroups/(?P<name>[^/]+)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class FreeReservation:
    """A reservation with free machines. `zone` "" is the regional pool; `group` is the id of its
    capacity reservation group, which a machine names."""

    group: str
    region: str
    zone: str
    size: str


def free_reservations(clients: Clients, group_id: str) -> Iterator[FreeReservation]:
    """Yield those of a group. Raises ProviderError, and ValueError for an invalid id."""
    match = _ID.fullmatch(group_id)
    if match is None:
        raise ValueError(f"{group_id!r} is not an id of a capacity reservation group")
    group, name = match["group"], match["name"]
    rows = clients.compute(
        lambda client: [
            reservation.as_dict()
            for reservation in client.capacity_reservations.list_by_capacity_reservation_group(
                group, name
            )
        ]
    )
    if not rows:
        return
    group_row = clients.compute(
        lambda client: client.capacity_reservation_groups.get(
            group, name, expand="instanceView"
        ).as_dict()
    )
    used = _used(group_row)
    for row in rows:
        sku = row.get("sku") or {}
        if int(sku.get("capacity") or 0) > used.get(str(row.get("name")), 0):
            zone = next(iter(row.get("zones") or ()), "")
            yield FreeReservation(group_id, region_of(row), str(zone), str(sku.get("name")))


def _used(group: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of running machines by reservation name."""
    view = (group.get("properties") or {}).get("instanceView") or {}
    return {
        str(reservation.get("name")): len(
            (reservation.get("utilizationInfo") or {}).get("virtualMachinesAllocated") or ()
        )
        for reservation in view.get("capacityReservations") or ()
    }
