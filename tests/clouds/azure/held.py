"""Capacity reservation groups of the stand-in: what is reserved, and how much of it is in use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.clouds.azure.machines import World


@dataclass(frozen=True)
class Reply:
    """`body` None is none at all."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Reservation:
    """Some machines of one size, in one zone or ("") in the regional pool."""

    name: str
    region: str
    zone: str
    size: str
    capacity: int


class Held:
    """`groups` is the resource id, in small letters, -> the reservations of the group."""

    def __init__(self, world: Callable[[], World]) -> None:
        self._world = world
        self.groups: dict[str, tuple[str, list[Reservation]]] = {}

    def add(self, ident: str, *reservations: Reservation) -> None:
        """A group."""
        self.groups[ident.lower()] = (ident, [*reservations])

    def answer(self, request: Any, group: str, name: str) -> Reply:
        """To a GET of a group, or of the reservations in it."""
        named, _, inner = name.partition("/")
        ident = self._world().name(group, "Microsoft.Compute/capacityReservationGroups", named)
        known = self.groups.get(ident.lower())
        if known is None or request.method != "GET":
            words = f"The resource '{named}' was not found."
            return Reply(404, {"error": {"code": "ResourceNotFound", "message": words}})
        rows = [self._row(ident, one) for one in known[1]]
        if inner:
            return Reply(200, {"value": rows})
        views = [{"name": one.name, **self._view(ident, one)} for one in known[1]]
        properties = {"instanceView": {"capacityReservations": views}}
        shown = properties if request.query.get("$expand") == "instanceView" else {}
        where = known[1][0].region if known[1] else "eastus"
        return Reply(200, {"id": ident, "name": named, "location": where, "properties": shown})

    def refuse(self, body: Mapping[str, Any]) -> tuple[int, str, str] | None:
        """Why a machine does not fit into the group that it names."""
        held = body["properties"].get("capacityReservation") or {}
        ident = (held.get("capacityReservationGroup") or {}).get("id", "")
        if not ident:
            return None
        _, found = self.groups.get(ident.lower(), ("", []))
        zone = next(iter(body.get("zones", ())), "")
        want = (body["location"], zone, body["properties"]["hardwareProfile"]["vmSize"])
        for one in found:
            if (one.region, one.zone, one.size) == want and len(self._inside(ident, one)) < (
                one.capacity
            ):
                return None
        words = "The capacity reservation group has no room for it."
        return 409, "AllocationFailed", words

    def _row(self, ident: str, one: Reservation) -> dict[str, Any]:
        row: dict[str, Any] = {
            "id": f"{ident}/capacityReservations/{one.name}",
            "name": one.name,
            "location": one.region,
            "sku": {"name": one.size, "capacity": one.capacity},
        }
        return row | ({"zones": [one.zone]} if one.zone else {})

    def _view(self, ident: str, one: Reservation) -> dict[str, Any]:
        inside = [{"id": row["id"]} for row in self._inside(ident, one)]
        told = {"currentCapacity": one.capacity, "virtualMachinesAllocated": inside}
        return {"utilizationInfo": told}

    def _inside(self, ident: str, one: Reservation) -> list[dict[str, Any]]:
        rows = [machine.row for machine in self._world().machines.values()]
        return [row for row in rows if self._is_in(row, ident, one)]

    def _is_in(self, row: Mapping[str, Any], ident: str, one: Reservation) -> bool:
        properties = row["properties"]
        held = properties.get("capacityReservation") or {}
        named = (held.get("capacityReservationGroup") or {}).get("id", "")
        zone = next(iter(row.get("zones", ())), "")
        where = (properties["hardwareProfile"]["vmSize"], zone)
        return named.lower() == ident.lower() and where == (one.size, one.zone)
