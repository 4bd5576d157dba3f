"""Parse Compute Engine's descriptions of machines into the port's types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from providers.base import CapacityType, Instance, InstanceState, parse_timestamp_us
from providers.gcp.names import TOKEN_TAG, link_name, qualified_name, region_of

USER = "spotd"  # made by cloud-init, see providers/cloud_init.py

_STATES = {
    "PENDING": InstanceState.PENDING,  # flex-start, waiting for capacity
    "PROVISIONING": InstanceState.PENDING,
    "STAGING": InstanceState.PENDING,
    "RUNNING": InstanceState.RUNNING,
    "REPAIRING": InstanceState.RUNNING,
    # A stopped machine is of no use, and its disk is billed until it is deleted.
    **dict.fromkeys(
        (
            "STOPPING",
            "STOPPED",
            "PENDING_STOP",
            "TERMINATED",
            "DEPROVISIONING",
            "SUSPENDING",
            "SUSPENDED",
        ),
        InstanceState.STOPPING,
    ),
}
_MODELS = {
    "SPOT": CapacityType.SPOT,
    "FLEX_START": CapacityType.BLOCK,
    "RESERVATION_BOUND": CapacityType.BLOCK,
}


def read_instance(row: Any, host_key: str = "") -> Instance:
    """Parse an Instance of the API."""
    zone = link_name(row.zone)
    labels = dict(row.labels)
    state = _STATES.get(row.status, InstanceState.PENDING)
    return Instance(
        instance_id=qualified_name(zone, row.name),
        token=labels.get(TOKEN_TAG, row.name),
        tags=labels,
        state=state,
        region=region_of(zone),
        zone=zone,
        instance_type=link_name(row.machine_type),
        capacity_type=_capacity(row),
        host=_host(row) if host_key else "",  # no login before the key is known
        private_host=next((str(c.network_i_p) for c in row.network_interfaces), ""),
        ssh_user=USER,
        host_public_key=host_key,
        launched_at_us=parse_timestamp_us(row.creation_timestamp),
        error=row.status_message,
    )


def is_alive(row: Any) -> bool:
    """Whether the machine is not stopping or stopped."""
    return _STATES.get(row.status) is not InstanceState.STOPPING


def same_machine(row: Any, labels: Mapping[str, str], instance_type: str, moving: str) -> bool:
    """Whether a machine matches a request; the label `moving` may differ, it changes later."""
    actual = {key: value for key, value in row.labels.items() if key != moving}
    expected = {key: value for key, value in labels.items() if key != moving}
    return actual == expected and link_name(row.machine_type) == instance_type


def _host(row: Any) -> str:
    """Return the public address, else the internal one."""
    for card in row.network_interfaces:
        for access in card.access_configs:
            if access.nat_i_p:
                return str(access.nat_i_p)
        if card.network_i_p:
            return str(card.network_i_p)
    return ""


def _capacity(row: Any) -> CapacityType:
    model = row.scheduling.provisioning_model
    if model in _MODELS:
        return _MODELS[model]
    if row.scheduling.preemptible:
        return CapacityType.SPOT
    bound = row.reservation_affinity.consume_reservation_type == "SPECIFIC_RESERVATION"
    return CapacityType.RESERVED if bound else CapacityType.ON_DEMAND
