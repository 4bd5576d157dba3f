"""The stand-in's capacity reservation groups: reserved and used capacity."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.clouds.azure.machines import World


@dataclass(frozen=True)
class Reply:
    """`body` None means no body."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Reservation:
    """Reserved machines of one size, in one zone or ("") in the regional pool."""

    name: str
    region: str
    zone: str
    size: str
    capacity: int


class Held:
    """`groups` maps lower-case resource id -> the reservations of the group."""

    def __init__(self, world: Callable[[], World]) -> None:
        self._world = world
        self.groups: dict[str, tuple[str, list[Reservation]]] = {}

    def add(self, ident: str, *reservations: Reservation) -> None:
        self.groups[ident.lower()] = (ident, [*reservations])

    def answer(self, request: Any, group: str, name: str) -> Reply:
        """Answer a GET of a group, or of its reservations."""
        named, _, inner = name.partition("/")
        resource_id = self._world().name(
            group, "Microsoft.Compute/capacityReservationGroups", named
        )
        known = self.groups.get(resource_id.lower())
        if known is None or request.method != "GET":
            message = f"The resource '{named}' was not found."
            return Reply(404, {"error": {"code": "ResourceNotFound", "message": message}})
        rows = [self._row(resource_id, item) for item in known[1]]
        if inner:
            return Reply(200, {"value": rows})
        views = [{"name": item.name, **self._view(resource_id, item)} for item in known[1]]
        properties = {"instanceView": {"capacityReservations": views}}
        shown = properties if request.query.get("$expand") == "instanceView" else {}
        where = known[1][0].region if known[1] else "eastus"
        return Reply(
            200, {"id": resource_id, "name": named, "location": where, "properties": shown}
        )

    def refuse(self, body: Mapping[str, Any]) -> tuple[int, str, str] | None:
        """Return the reason why a machine does not fit into the group that it names."""
        held = body["properties"].get("capacityReservation") or {}
        resource_id = (held.get("capacityReservationGroup") or {}).get("id", "")
        if not resource_id:
            return None
        _, result = self.groups.get(resource_id.lower(), ("", []))
        zone = next(iter(body.get("zones", ())), "")
        want = (body["location"], zone, body["properties"]["hardwareProfile"]["vmSize"])
        for item in result:
            if (item.region, item.zone, item.size) == want and len(
                self._inside(resource_id, item)
            ) < (item.capacity):
                return None
        message = "The capacity reservation group has no room for it."
        return 409, "AllocationFailed", message

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
        reported = {"currentCapacity": one.capacity, "virtualMachinesAllocated": inside}
        return {"utilizationInfo": reported}

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
