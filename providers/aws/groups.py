"""Cluster placement groups, one for each gang.

The first rank that launches creates the group; the others find it by name. It becomes a leftover
when the gang is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from providers.aws.clients import Clients
from providers.aws.listing import instances_of, qualified_name, tag_filter, tags_of
from providers.base import CapacityType, LaunchRequest, Leftover, LeftoverKind, ProviderError

EXISTS = "InvalidPlacementGroup.Duplicate"
# Not placed in a group: capacity blocks are close together already (an UltraCluster), and a
# reservation is used in the group that it was created in, or in none.
_UNGROUPED = (CapacityType.RESERVED, CapacityType.BLOCK)
_ENDED = ["shutting-down", "terminated"]


def group_name(request: LaunchRequest) -> str:
    """Return the name of the machine's placement group; "" for none."""
    return "" if request.capacity_type in _UNGROUPED else request.gang


def create_group(clients: Clients, request: LaunchRequest, tags: Mapping[str, str]) -> None:
    """Create the group with `tags`; an existing one is success. Raises ProviderError."""
    pairs = [{"Key": key, "Value": value} for key, value in sorted(tags.items())]
    try:
        clients.call(
            request.region,
            "create_placement_group",
            GroupName=group_name(request),
            Strategy="cluster",
            TagSpecifications=[{"ResourceType": "placement-group", "Tags": pairs}],
        )
    except ProviderError as error:
        if error.code != EXISTS:
            raise


def find_unused(clients: Clients, region: str, deployment: str) -> Iterator[Leftover]:
    """Yield the deployment's groups without a machine. Raises ProviderError."""
    own_filter = tag_filter(deployment)
    rows = clients.call(region, "describe_placement_groups", Filters=[own_filter])[
        "PlacementGroups"
    ]
    if not rows:
        return
    machines = clients.pages(region, "describe_instances", "Reservations", Filters=[own_filter])
    used = {
        (row.get("Placement") or {}).get("GroupName")
        for row in instances_of(machines)
        if row["State"]["Name"] not in _ENDED
    }
    for row in rows:
        if row.get("State") == "available" and row["GroupName"] not in used:
            leftover_id = qualified_name(region, row["GroupName"])
            yield Leftover(leftover_id, LeftoverKind.GROUP, tags_of(row), region)
