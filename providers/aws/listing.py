"""Parse EC2's descriptions of machines into the port's types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from providers.aws.codes import CODES
from providers.base import CapacityType, Instance, InstanceState, timestamp_us

DEPLOYMENT_TAG = "spotd-deployment"
USER = "spotd"  # made by cloud-init, see providers/cloud_init.py

_STATES = {
    "pending": InstanceState.PENDING,
    "running": InstanceState.RUNNING,
    "shutting-down": InstanceState.STOPPING,
    "stopping": InstanceState.STOPPING,
    # Not usable: machines terminate at shutdown, and a stopped one's disk is billed until then.
    "stopped": InstanceState.STOPPING,
    "terminated": InstanceState.TERMINATED,
}
_LIFECYCLES = {
    "spot": CapacityType.SPOT,
    "scheduled": CapacityType.RESERVED,
    "capacity-block": CapacityType.BLOCK,
}
# State reasons of creates that failed after EC2 had accepted them, as against machines that ran.
_FAILED_CREATE_REASONS = (
    "Server.InsufficientInstanceCapacity",
    "Server.InternalError",
    "Client.VolumeLimitExceeded",
    "Client.InternalError",
    "Client.InvalidSnapshot.NotFound",
)


def qualified_name(region: str, resource_id: str) -> str:
    """Return "REGION/ID": with the region in the id, terminating a machine needs no other state."""
    return f"{region}/{resource_id}"


def split_name(name: str) -> tuple[str, str]:
    """Return (region, id) of a qualified name; ("", "") for anything else."""
    region, slash, resource_id = name.partition("/")
    return (region, resource_id) if slash else ("", "")


def read_instance(region: str, row: Mapping[str, Any]) -> Instance:
    """Parse an instance of DescribeInstances."""
    tags = tags_of(row)
    reason = row.get("StateReason") or {}
    code, text = str(reason.get("Code") or ""), str(reason.get("Message") or "")
    state = _STATES.get((row.get("State") or {}).get("Name", ""), InstanceState.PENDING)
    failed = state is InstanceState.TERMINATED and code in _FAILED_CREATE_REASONS
    ended = state in (InstanceState.STOPPING, InstanceState.TERMINATED)
    return Instance(
        instance_id=qualified_name(region, row["InstanceId"]),
        token=tags.get("spotd-token") or row.get("ClientToken") or "",
        tags=tags,
        state=InstanceState.FAILED if failed else state,
        region=region,
        zone=(row.get("Placement") or {}).get("AvailabilityZone", ""),
        instance_type=row.get("InstanceType", ""),
        capacity_type=_capacity(row),
        host=row.get("PublicIpAddress") or row.get("PrivateIpAddress") or "",
        private_host=row.get("PrivateIpAddress") or "",
        ssh_user=USER,
        launched_at_us=timestamp_us(row.get("LaunchTime")),
        error=(text or code) if ended and code else "",
        error_code=type(CODES.error(code, text)).__name__ if failed else "",
    )


def tags_of(row: Mapping[str, Any], key: str = "Tags") -> dict[str, str]:
    """Return AWS's list of tags as a dictionary."""
    return {tag["Key"]: tag["Value"] for tag in row.get(key) or ()}


def tag_filter(deployment: str) -> dict[str, Any]:
    """Return a filter for the resources of a deployment."""
    return {"Name": f"tag:{DEPLOYMENT_TAG}", "Values": [deployment]}


def instances_of(reservations: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    """Yield the instances in the reservations of DescribeInstances."""
    for reservation in reservations:
        yield from reservation.get("Instances") or ()


def _capacity(row: Mapping[str, Any]) -> CapacityType:
    lifecycle = row.get("InstanceLifecycle")
    if lifecycle in _LIFECYCLES:
        return _LIFECYCLES[lifecycle]
    return CapacityType.RESERVED if row.get("CapacityReservationId") else CapacityType.ON_DEMAND
