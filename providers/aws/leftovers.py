"""What machines of ours left behind in a region."""

from __future__ import annotations

from collections.abc import Iterator

from providers.aws import groups
from providers.aws.clients import Clients
from providers.aws.codes import BAD_VALUE, IN_USE, NOBODYS
from providers.aws.listing import name_of, tag_filter, tags_of, us_of
from providers.base import Leftover, LeftoverKind, ProviderError, RejectedError

_DELETES = {
    "vol-": ("delete_volume", "VolumeId"),
    "eni-": ("delete_network_interface", "NetworkInterfaceId"),
    "eipalloc-": ("release_address", "AllocationId"),
    "spotd-": ("delete_placement_group", "GroupName"),
}


def find(clients: Clients, region: str, deployment: str) -> Iterator[Leftover]:
    """Volumes that are available, cards and addresses without an association, placement groups
    without a machine. Raises ProviderError."""
    ours = tag_filter(deployment)
    loose = [ours, {"Name": "status", "Values": ["available"]}]
    for row in clients.pages(region, "describe_volumes", "Volumes", Filters=loose):
        yield Leftover(
            name_of(region, row["VolumeId"]),
            LeftoverKind.DISK,
            tags_of(row),
            region,
            row.get("AvailabilityZone", ""),
            us_of(row.get("CreateTime")),
        )
    for row in clients.pages(
        region, "describe_network_interfaces", "NetworkInterfaces", Filters=loose
    ):
        yield Leftover(
            name_of(region, row["NetworkInterfaceId"]),
            LeftoverKind.CARD,
            tags_of(row, "TagSet"),
            region,
            row.get("AvailabilityZone", ""),
        )
    for row in clients.call(region, "describe_addresses", Filters=[ours])["Addresses"]:
        if row.get("AllocationId") and not (row.get("AssociationId") or row.get("InstanceId")):
            yield Leftover(
                name_of(region, row["AllocationId"]), LeftoverKind.ADDRESS, tags_of(row), region
            )
    yield from groups.find(clients, region, deployment)


def discard(clients: Clients, region: str, resource: str) -> None:
    """Delete one. An unknown id is success; raises RejectedError for what is in use."""
    for prefix, (operation, parameter) in _DELETES.items():
        if resource.startswith(prefix):
            try:
                clients.call(region, operation, **{parameter: resource})
            except ProviderError as error:
                bad = error.code == BAD_VALUE
                if error.code in IN_USE or (bad and "in use" in str(error)):
                    raise RejectedError(str(error), code=error.code) from None
                if error.code not in NOBODYS and not bad:
                    raise
