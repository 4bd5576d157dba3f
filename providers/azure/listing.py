"""Parse Azure's descriptions of machines into the port's types. The run-time status and the address
come from separate lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from providers.azure.codes import CODES
from providers.azure.launch import zone_name
from providers.base import CapacityType, Instance, InstanceState, parse_timestamp_us

DEPLOYMENT_TAG = "spotd-deployment"
TOKEN_TAG = "spotd-token"  # noqa: S105 - the name of a tag
_ALIVE = ("running", "starting")
_OFF = ("stopping", "stopped", "deallocating", "deallocated")
_FAILED = "ProvisioningState/failed"

Row = Mapping[str, Any]


def read_instance(
    row: Row, view: Row | None = None, host: str = "", private_host: str = ""
) -> Instance:
    """Parse a listed machine, with its instance view where that is known."""
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
        launched_at_us=parse_timestamp_us(properties.get("timeCreated")),
        error=error,
        error_code=error_code,
    )


def state_of(row: Row, view: Row | None) -> InstanceState:
    """Return the state of a machine.

    A machine with a failed operation (on its tags, say) may still train: only one without power is
    a failed create, and none is while the power state is unknown. A powered-off machine counts as
    stopping, but is billed until it is deleted.
    """
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
    """Return the power state ("running", "deallocated", ...); "" where it is unknown."""
    for status in _statuses(view):
        kind, _, power = str(status.get("code") or "").partition("/")
        if kind == "PowerState":
            return power
    return ""


def reason_of(view: Row | None) -> tuple[str, str]:
    """Return (code, message) of a failed create; "" as code where Azure gives none."""
    for status in _statuses(view):
        code = str(status.get("code") or "")
        reason = code[len(_FAILED) :].strip("/")
        if code.lower().startswith(_FAILED.lower()) and reason:
            return reason, str(status.get("message") or status.get("displayStatus") or reason)
    return "", "the create failed, and Azure does not say why"


def failure_of(view: Row | None) -> tuple[str, str]:
    """Return (message, name of the error class) of a failed create."""
    code, message = reason_of(view)
    return message, type(CODES.error(code, message)).__name__ if code else ""


def views_of(rows: Iterable[Row]) -> dict[str, Row]:
    """Return instance views by machine key."""
    pairs = ((row, (row.get("properties") or {}).get("instanceView")) for row in rows)
    return {key_of(row): view for row, view in pairs if view}


def key_of(row: Row) -> str:
    """Return the id in lower case: Azure's capitalisation of ids varies."""
    return str(row.get("id") or "").lower()


def region_of(row: Row) -> str:
    """Return the region: Azure writes "eastus", and sometimes "East US"."""
    return str(row.get("location") or "").replace(" ", "").lower()


def tags_of(row: Row) -> dict[str, str]:
    """Return the tags; {} for none."""
    return dict(row.get("tags") or {})


def _statuses(view: Row | None) -> Iterable[Row]:
    return (view or {}).get("statuses") or ()


def _capacity(properties: Row) -> CapacityType:
    if properties.get("priority") in ("Spot", "Low"):
        return CapacityType.SPOT
    reserved = (properties.get("capacityReservation") or {}).get("capacityReservationGroup")
    return CapacityType.RESERVED if reserved else CapacityType.ON_DEMAND
