"""Cluster placement groups: one for each gang, made by whichever rank asks first, found again by
its name, and left behind when the gang is gone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from providers.aws.clients import Clients
from providers.aws.listing import instances_of, name_of, tag_filter, tags_of
from providers.base import CapacityType, LaunchRequest, Leftover, LeftoverKind, ProviderError

EXISTS = "InvalidPlacementGroup.Duplicate"
# What has no use for a group: blocks lie close together already (an UltraCluster), and a
# reservation is taken in the group that it was made in, or in none.
_PLACED = (CapacityType.RESERVED, CapacityType.BLOCK)
_ENDED = ["shutting-down", "terminated"]


def group_of(request: LaunchRequest) -> str:
    """The name of the group that the machine goes into; "" for none."""
    return "" if request.capacity_type in _PLACED else request.gang


def make(clients: Clients, request: LaunchRequest, tags: Mapping[str, str]) -> None:
    """One of that name with the `tags` of the first who asks; one that is there is as good. Raises
    ProviderError."""
    pairs = [{"Key": key, "Value": value} for key, value in sorted(tags.items())]
    try:
        clients.call(
            request.region,
            "create_placement_group",
            GroupName=group_of(request),
            Strategy="cluster",
            TagSpecifications=[{"ResourceType": "placement-group", "Tags": pairs}],
        )
    except ProviderError as error:
        if error.code != EXISTS:
            raise


def find(clients: Clients, region: str, deployment: str) -> Iterator[Leftover]:
    """Those of the deployment without a machine. Raises ProviderError."""
    ours = tag_filter(deployment)
    rows = clients.call(region, "describe_placement_groups", Filters=[ours])["PlacementGroups"]
    if not rows:
        return
    machines = clients.pages(region, "describe_instances", "Reservations", Filters=[ours])
    used = {
        (row.get("Placement") or {}).get("GroupName")
        for row in instances_of(machines)
        if row["State"]["Name"] not in _ENDED
    }
    for row in rows:
        if row.get("State") == "available" and row["GroupName"] not in used:
            ident = name_of(region, row["GroupName"])
            yield Leftover(ident, LeftoverKind.GROUP, tags_of(row), region)
