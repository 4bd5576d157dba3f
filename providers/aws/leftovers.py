"""Resources that outlived their machines in a region."""

from __future__ import annotations

from collections.abc import Iterator

from providers.aws import groups
from providers.aws.clients import Clients
from providers.aws.codes import BAD_VALUE, IN_USE, NOT_FOUND
from providers.aws.listing import qualified_name, tag_filter, tags_of
from providers.base import Leftover, LeftoverKind, ProviderError, RejectedError, timestamp_us

_DELETES = {
    "vol-": ("delete_volume", "VolumeId"),
    "eni-": ("delete_network_interface", "NetworkInterfaceId"),
    "eipalloc-": ("release_address", "AllocationId"),
    "spotd-": ("delete_placement_group", "GroupName"),
}


def find(clients: Clients, region: str, deployment: str) -> Iterator[Leftover]:
    """Yield available volumes, unassociated interfaces and addresses, and placement groups without
    a machine. Raises ProviderError."""
    own_filter = tag_filter(deployment)
    available = [own_filter, {"Name": "status", "Values": ["available"]}]
    for row in clients.pages(region, "describe_volumes", "Volumes", Filters=available):
        yield Leftover(
            qualified_name(region, row["VolumeId"]),
            LeftoverKind.DISK,
            tags_of(row),
            region,
            row.get("AvailabilityZone", ""),
            timestamp_us(row.get("CreateTime")),
        )
    for row in clients.pages(
        region, "describe_network_interfaces", "NetworkInterfaces", Filters=available
    ):
        yield Leftover(
            qualified_name(region, row["NetworkInterfaceId"]),
            LeftoverKind.NETWORK_INTERFACE,
            tags_of(row, "TagSet"),
            region,
            row.get("AvailabilityZone", ""),
        )
    for row in clients.call(region, "describe_addresses", Filters=[own_filter])["Addresses"]:
        if row.get("AllocationId") and not (row.get("AssociationId") or row.get("InstanceId")):
            yield Leftover(
                qualified_name(region, row["AllocationId"]),
                LeftoverKind.ADDRESS,
                tags_of(row),
                region,
            )
    yield from groups.find_unused(clients, region, deployment)


def discard(clients: Clients, region: str, resource: str) -> None:
    """Delete a leftover. An unknown id is success; raises RejectedError for one in use."""
    for prefix, (operation, parameter) in _DELETES.items():
        if resource.startswith(prefix):
            try:
                clients.call(region, operation, **{parameter: resource})
            except ProviderError as error:
                bad_value = error.code == BAD_VALUE
                if error.code in IN_USE or (bad_value and "in use" in str(error)):
                    raise RejectedError(str(error), code=error.code) from None
                if error.code not in NOT_FOUND and not bad_value:
                    raise
