"""What Azure says of a machine, in our words: the machine itself, its run time status, which comes
by another list, and its address, which is another resource."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from providers.azure.codes import CODES
from providers.azure.launch import zone_name
from providers.base import CapacityType, Instance, InstanceState

DEPLOYMENT_TAG = "spotd-deployment"
TOKEN_TAG = "spotd-token"  # noqa: S105 - the name of a tag
_ALIVE = ("running", "starting")
_OFF = ("stopping", "stopped", "deallocating", "deallocated")
_FAILED = "ProvisioningState/failed"

Row = Mapping[str, Any]


def read_instance(
    row: Row, view: Row | None = None, host: str = "", private_host: str = ""
) -> Instance:
    """One machine: as it is listed, with its instance view where that is known."""
    tags, region = tags_of(row), region_of(row)
    state = state_of(row, view)
    error, error_code = failure_of(view) if state is InstanceState.FAILED else ("", "")
    properties = row.get("properties") or {}
    return Instance(
        instance_id=str(row["name"]),
        token=tags.get(TOKEN_TAG) or str(row["name"]),
        tags=tags,
        state=state,
        region=region,
        zone=zone_name(region, next(iter(row.get("zones") or ()), "")),
        instance_type=(properties.get("hardwareProfile") or {}).get("vmSize") or "",
        capacity_type=_capacity(properties),
        host=host,
        private_host=private_host,
        ssh_user=(properties.get("osProfile") or {}).get("adminUsername") or "",
        launched_at_us=us_of(properties.get("timeCreated")),
        error=error,
        error_code=error_code,
    )


def state_of(row: Row, view: Row | None) -> InstanceState:
    """A machine on which some operation failed (its tags, say) may train on: what has no power is a
    create that failed, and nothing is where nobody tells of its power. One that is off is as good
    as ending, but it is paid for until it ends."""
    provisioning = str((row.get("properties") or {}).get("provisioningState") or "")
    power = power_of(view)
    if provisioning == "Deleting":
        return InstanceState.STOPPING
    if provisioning == "Failed" and view is not None:
        return InstanceState.RUNNING if power in _ALIVE else InstanceState.FAILED
    if provisioning in ("Creating", "Failed") or power == "starting":
        return InstanceState.PENDING
    return InstanceState.STOPPING if power in _OFF else InstanceState.RUNNING


def power_of(view: Row | None) -> str:
    """ "running", "deallocated", ...; "" where nobody says."""
    for status in _statuses(view):
        kind, _, power = str(status.get("code") or "").partition("/")
        if kind == "PowerState":
            return power
    return ""


def reason_of(view: Row | None) -> tuple[str, str]:
    """(code, words) of what a create came to; no code where Azure does not say."""
    for status in _statuses(view):
        code = str(status.get("code") or "")
        reason = code[len(_FAILED) :].strip("/")
        if code.lower().startswith(_FAILED.lower()) and reason:
            return reason, str(status.get("message") or status.get("displayStatus") or reason)
    return "", "the create failed, and Azure does not say why"


def failure_of(view: Row | None) -> tuple[str, str]:
    """(words, name of our error) of a create that failed."""
    code, words = reason_of(view)
    return words, type(CODES.error(code, words)).__name__ if code else ""


def views_of(rows: Iterable[Row]) -> dict[str, Row]:
    """Instance views by the key of their machine."""
    found = ((row, (row.get("properties") or {}).get("instanceView")) for row in rows)
    return {key_of(row): view for row, view in found if view}


def key_of(row: Row) -> str:
    """Azure writes one id now in capitals and now not."""
    return str(row.get("id") or "").lower()


def region_of(row: Row) -> str:
    """The region of something: Azure writes "eastus", and at times "East US"."""
    return str(row.get("location") or "").replace(" ", "").lower()


def tags_of(row: Row) -> dict[str, str]:
    """The tags; {} for none."""
    return dict(row.get("tags") or {})


def us_of(text: Any) -> int:
    """Microseconds since the epoch of an ISO 8601 time; 0 for none, and for what is none."""
    try:
        # Azure writes up to seven decimals.
        return int(datetime.fromisoformat(str(text)).timestamp() * 1_000_000)
    except ValueError:
        return 0


def _statuses(view: Row | None) -> Iterable[Row]:
    return (view or {}).get("statuses") or ()


def _capacity(properties: Row) -> CapacityType:
    if properties.get("priority") in ("Spot", "Low"):
        return CapacityType.SPOT
    reserved = (properties.get("capacityReservation") or {}).get("capacityReservationGroup")
    return CapacityType.RESERVED if reserved else CapacityType.ON_DEMAND
