"""What machines of ours left behind. Their cards, and the addresses on those, are parts of them and
go with them; a disk is all that can be left, and the placement policy of a gang."""

from __future__ import annotations

from typing import Any

from providers.base import Leftover, LeftoverKind, ProviderError
from providers.gcp.clients import Clients
from providers.gcp.codes import nobodys
from providers.gcp.fabric import discard_policy, find_policies, place_of
from providers.gcp.names import labelled, name_of, parted, region_of
from providers.gcp.operations import us_of


def find(clients: Clients, deployment: str) -> list[Leftover]:
    """Disks and policies of ours that no machine uses. Raises ProviderError."""
    ours = labelled(deployment)
    answers = clients.aggregated("Disks", "disks", ours)
    loose = [read_disk(zone, row) for zone, rows in answers for row in rows if not row.users]
    policies = find_policies(clients, deployment)
    if not policies:
        return loose
    machines = clients.aggregated("Instances", "instances", ours)
    used = {
        place_of(link) for _, rows in machines for row in rows for link in row.resource_policies
    }
    return [*loose, *(left for place, left in policies.items() if place not in used)]


def read_disk(zone: str, row: Any) -> Leftover:
    """One Disk of the API."""
    since = row.last_detach_timestamp or row.creation_timestamp
    return Leftover(
        name_of(zone, row.name),
        LeftoverKind.DISK,
        dict(row.labels),
        region_of(zone),
        zone,
        us_of(since),
    )


def discard(clients: Clients, leftover_id: str) -> None:
    """Delete one. An unknown id is success; raises RejectedError for what a machine uses."""
    zone, disk = parted(leftover_id)
    if discard_policy(clients, leftover_id) or not zone:
        return
    try:
        clients.call("Disks", "delete_unary", zone=zone, disk=disk)
    except ProviderError as error:
        if not nobodys(error):
            raise
