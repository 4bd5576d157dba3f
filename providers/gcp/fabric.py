"""Interconnect and placement of a gang: GPUDirect network interfaces, each in a network of its own,
and a compact placement policy.

The first rank that launches creates the policy; it becomes a leftover when the gang is gone.

Interfaces of each type: Google's page on the network bandwidth of GPU machines (A3 High 1 + 4 for
GPUDirect-TCPX, A3 Mega 1 + 8 for TCPXO, A3 Ultra and A4 2 + 8 for RDMA). Types that may have a
placement policy, and that calendar-mode capacity is close together already: Google's page on
compact placement policies. The software on the machine (NCCL's plugin for the type) belongs to the
image or the job's set-up.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from providers.base import (
    CapacityType,
    LaunchRequest,
    Leftover,
    LeftoverKind,
    ProviderError,
    UnknownOutcome,
    parse_timestamp_us,
)
from providers.gcp.clients import Clients
from providers.gcp.codes import EXISTS, is_not_found
from providers.gcp.names import DEPLOYMENT_TAG, link_name

GPUDIRECT = "gpudirect"
# type -> (interfaces after the first in plain networks, interfaces in an RDMA network)
CARDS = {
    "a3-highgpu-8g": (4, 0),
    "a3-megagpu-8g": (8, 0),
    "a3-ultragpu-8g": (1, 8),
    "a4-highgpu-8g": (1, 8),
}
PREFIX = "spotd-"  # of all policies and machines
READY_TIMEOUT_S = 4.0  # a policy that takes longer is ready at the next try
POLL_S = 0.25
_UNGROUPED = (CapacityType.RESERVED, CapacityType.BLOCK)


def extra_cards(request: LaunchRequest, project: str, fabric: str) -> list[dict[str, str]]:
    """Return the interfaces after the first: in the region's subnetworks FABRIC-1, FABRIC-2, ...
    and for RDMA, whose networks belong to one zone, FABRIC-rdma-ZONE-1 to -8."""
    if request.interconnect != GPUDIRECT:
        return []
    plain, rdma = CARDS.get(request.instance_type, (0, 0))
    subnetwork_prefix = f"projects/{project}/regions/{request.region}/subnetworks/{fabric}"
    return [
        *(
            {"subnetwork": f"{subnetwork_prefix}-{n}", "nicType": "GVNIC"}
            for n in range(1, plain + 1)
        ),
        *(
            {"subnetwork": f"{subnetwork_prefix}-rdma-{request.zone}-{n}", "nicType": "MRDMA"}
            for n in range(1, rdma + 1)
        ),
    ]


def policy_of(request: LaunchRequest) -> str:
    """Return the name of the machine's placement policy; "" for none."""
    return "" if request.capacity_type in _UNGROUPED else request.gang


def make_policy(
    clients: Clients, request: LaunchRequest, tags: Mapping[str, str], deadline_s: float
) -> None:
    """Create the placement policy unless it exists, and wait for it until `deadline_s` (monotonic).

    Policies have no labels, so `tags` go into the description. Raises ProviderError; UnknownOutcome
    while the policy is not ready.
    """
    name, region = policy_of(request), request.region
    stop_s = min(time.monotonic() + READY_TIMEOUT_S, deadline_s)
    row = _get_policy(clients, region, name)
    if row is None:
        body = {
            "name": name,
            "description": " ".join(f"{key}={value}" for key, value in sorted(tags.items())),
            "group_placement_policy": {"collocation": "COLLOCATED"},
        }
        try:
            clients.call(
                "ResourcePolicies", "insert_unary", region=region, resource_policy_resource=body
            )
        except ProviderError as error:
            if error.code not in EXISTS:
                raise
    while row is None or row.status != "READY":
        if time.monotonic() >= stop_s:
            raise UnknownOutcome(f"{region}: the placement policy {name} is still being created")
        time.sleep(POLL_S)
        row = _get_policy(clients, region, name)


def find_policies(clients: Clients, deployment: str) -> dict[tuple[str, str], Leftover]:
    """Return the deployment's policies by (region, name), used or not. Raises ProviderError."""
    rows_by_region = clients.aggregated(
        "ResourcePolicies", "resource_policies", f'name eq "{PREFIX}.*"', scope_kind="regions"
    )
    policies = {}
    for region, rows in rows_by_region:
        for row in rows:
            tags = _parse_tags(row.description)
            if tags.get(DEPLOYMENT_TAG) == deployment:
                leftover_id, since_us = (
                    f"{region}/policy/{row.name}",
                    parse_timestamp_us(row.creation_timestamp),
                )
                leftover = Leftover(
                    leftover_id, LeftoverKind.GROUP, tags, region, since_us=since_us
                )
                policies[region, row.name] = leftover
    return policies


def policy_location(link: str) -> tuple[str, str]:
    """Return (region, name) of ".../regions/REGION/resourcePolicies/NAME"."""
    return link_name(link.rpartition("/resourcePolicies/")[0]), link_name(link)


def discard_policy(clients: Clients, leftover_id: str) -> bool:
    """Delete a placement policy; False when the id is not one of a policy. Raises ProviderError."""
    parts = leftover_id.split("/")
    if len(parts) != 3 or parts[1] != "policy":
        return False
    try:
        clients.call("ResourcePolicies", "delete_unary", region=parts[0], resource_policy=parts[2])
    except ProviderError as error:
        if not is_not_found(error):
            raise
    return True


def _get_policy(clients: Clients, region: str, name: str) -> Any:
    try:
        return clients.call("ResourcePolicies", "get", region=region, resource_policy=name)
    except ProviderError as error:
        if is_not_found(error):
            return None
        raise


def _parse_tags(text: str) -> dict[str, str]:
    pairs = (word.partition("=") for word in text.split())
    return {key: value for key, equals, value in pairs if equals}
