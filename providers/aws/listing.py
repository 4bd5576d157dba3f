"""What EC2 says of a machine, in our words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from providers.aws.codes import CODES
from providers.base import CapacityType, Instance, InstanceState

DEPLOYMENT_TAG = "spotd-deployment"
USER = "spotd"  # made by cloud-init, see providers/cloud_init.py

_STATES = {
    "pending": InstanceState.PENDING,
    "running": InstanceState.RUNNING,
    "shutting-down": InstanceState.STOPPING,
    "stopping": InstanceState.STOPPING,
    # Never ours to keep: behaviour at shutdown is terminate, but its disk bills until it is ended.
    "stopped": InstanceState.STOPPING,
    "terminated": InstanceState.TERMINATED,
}
_LIFECYCLES = {
    "spot": CapacityType.SPOT,
    "scheduled": CapacityType.RESERVED,
    "capacity-block": CapacityType.BLOCK,
}
# Ends that a create came to which EC2 had accepted, as against the ends of machines that ran.
_STILLBORN = (
    "Server.InsufficientInstanceCapacity",
    "Server.InternalError",
    "Client.VolumeLimitExceeded",
    "Client.InternalError",
    "Client.InvalidSnapshot.NotFound",
)
INTERRUPTED = "Server.SpotInstanceTermination"


def name_of(region: str, resource_id: str) -> str:
    """Our name of something in a region: whoever has it can end it, with no other memory."""
    return f"{region}/{resource_id}"


def parted(name: str) -> tuple[str, str]:
    """(region, id) of such a name; ("", "") of what is none."""
    region, slash, resource_id = name.partition("/")
    return (region, resource_id) if slash else ("", "")


def read_instance(region: str, row: Mapping[str, Any]) -> Instance:
    """One machine of DescribeInstances."""
    tags = tags_of(row)
    reason = row.get("StateReason") or {}
    code, text = str(reason.get("Code") or ""), str(reason.get("Message") or "")
    state = _STATES.get((row.get("State") or {}).get("Name", ""), InstanceState.PENDING)
    failed = state is InstanceState.TERMINATED and code in _STILLBORN
    ended = state in (InstanceState.STOPPING, InstanceState.TERMINATED)
    return Instance(
        instance_id=name_of(region, row["InstanceId"]),
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
        launched_at_us=us_of(row.get("LaunchTime")),
        error=(text or code) if ended and code else "",
        error_code=type(CODES.error(code, text)).__name__ if failed else "",
    )


def tags_of(row: Mapping[str, Any], key: str = "Tags") -> dict[str, str]:
    """AWS's list of pairs as a dictionary."""
    return {tag["Key"]: tag["Value"] for tag in row.get(key) or ()}


def tag_filter(deployment: str) -> dict[str, Any]:
    """What is of a deployment."""
    return {"Name": f"tag:{DEPLOYMENT_TAG}", "Values": [deployment]}


def us_of(moment: datetime | None) -> int:
    """Microseconds since the epoch; 0 for none."""
    return int(moment.timestamp() * 1_000_000) if moment is not None else 0


def instances_of(reservations: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    """The machines of DescribeInstances' reservations."""
    for reservation in reservations:
        yield from reservation.get("Instances") or ()


def _capacity(row: Mapping[str, Any]) -> CapacityType:
    lifecycle = row.get("InstanceLifecycle")
    if lifecycle in _LIFECYCLES:
        return _LIFECYCLES[lifecycle]
    return CapacityType.RESERVED if row.get("CapacityReservationId") else CapacityType.ON_DEMAND
