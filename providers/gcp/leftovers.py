"""Resources that outlived their machines: disks, and placement policies of gangs. Interfaces and
addresses are part of a machine and are deleted with it."""

from __future__ import annotations

from typing import Any

from providers.base import Leftover, LeftoverKind, ProviderError, parse_timestamp_us
from providers.gcp.clients import Clients
from providers.gcp.codes import is_not_found
from providers.gcp.fabric import discard_policy, find_policies, policy_location
from providers.gcp.names import label_filter, qualified_name, region_of, split_name


def find(clients: Clients, deployment: str) -> list[Leftover]:
    """Return disks and policies of the deployment that no machine uses. Raises ProviderError."""
    own_filter = label_filter(deployment)
    rows_by_zone = clients.aggregated("Disks", "disks", own_filter)
    unattached = [
        read_disk(zone, row) for zone, rows in rows_by_zone for row in rows if not row.users
    ]
    policies = find_policies(clients, deployment)
    if not policies:
        return unattached
    machines = clients.aggregated("Instances", "instances", own_filter)
    used = {
        policy_location(link)
        for _, rows in machines
        for row in rows
        for link in row.resource_policies
    }
    return [
        *unattached,
        *(leftover for location, leftover in policies.items() if location not in used),
    ]


def read_disk(zone: str, row: Any) -> Leftover:
    """Parse a Disk of the API."""
    since = row.last_detach_timestamp or row.creation_timestamp
    return Leftover(
        qualified_name(zone, row.name),
        LeftoverKind.DISK,
        dict(row.labels),
        region_of(zone),
        zone,
        parse_timestamp_us(since),
    )


def discard(clients: Clients, leftover_id: str) -> None:
    """Delete a leftover. An unknown id is success; raises RejectedError for one that a machine
    uses."""
    zone, disk = split_name(leftover_id)
    if discard_policy(clients, leftover_id) or not zone:
        return
    try:
        clients.call("Disks", "delete_unary", zone=zone, disk=disk)
    except ProviderError as error:
        if not is_not_found(error):
            raise
