"""What joins the machines of a gang: cards for GPUDirect, each in a network of its own, and one
compact placement policy, made by whichever rank asks first and left behind when the gang is gone.

Cards of each type: Google's page on the network bandwidth of GPU machines (A3 High 1 + 4 for
GPUDirect-TCPX, A3 Mega 1 + 8 for TCPXO, A3 Ultra and A4 2 + 8 for RDMA). Types that may have a
placement policy, and that booked time is close together already: Google's page on compact placement
policies. What runs on the machine (NCCL's plugin for the type) is the image's or the job's setup.
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
)
from providers.gcp.clients import Clients
from providers.gcp.codes import EXISTS, nobodys
from providers.gcp.names import DEPLOYMENT_TAG, last
from providers.gcp.operations import us_of

GPUDIRECT = "gpudirect"
# type -> (cards beside the first in plain networks, cards in a network with an RDMA profile)
CARDS = {
    "a3-highgpu-8g": (4, 0),
    "a3-megagpu-8g": (8, 0),
    "a3-ultragpu-8g": (1, 8),
    "a4-highgpu-8g": (1, 8),
}
PREFIX = "spotd-"  # of every policy, as of every machine
MADE_S = 4.0  # for a policy to be ready; one that takes longer is there at the next try
POLL_S = 0.25
_PLACED = (CapacityType.RESERVED, CapacityType.BLOCK)


def cards(request: LaunchRequest, project: str, fabric: str) -> list[dict[str, str]]:
    """The cards beside the first: of the subnetworks FABRIC-1, FABRIC-2, ... of the region, and,
    with RDMA, whose networks are of one zone, FABRIC-rdma-ZONE-1 to -8."""
    if request.interconnect != GPUDIRECT:
        return []
    plain, rdma = CARDS.get(request.instance_type, (0, 0))
    where = f"projects/{project}/regions/{request.region}/subnetworks/{fabric}"
    return [
        *({"subnetwork": f"{where}-{n}", "nicType": "GVNIC"} for n in range(1, plain + 1)),
        *(
            {"subnetwork": f"{where}-rdma-{request.zone}-{n}", "nicType": "MRDMA"}
            for n in range(1, rdma + 1)
        ),
    ]


def policy_of(request: LaunchRequest) -> str:
    """The name of the placement policy that the machine gets; "" for none."""
    return "" if request.capacity_type in _PLACED else request.gang


def make_policy(
    clients: Clients, request: LaunchRequest, tags: Mapping[str, str], deadline_s: float
) -> None:
    """See to the policy, until `deadline_s` (monotonic): policies have no labels, so that its
    description has the `tags` of the first who asks. Raises ProviderError; UnknownOutcome while it
    is being made."""
    name, region = policy_of(request), request.region
    until_s = min(time.monotonic() + MADE_S, deadline_s)
    row = _get(clients, region, name)
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
        if time.monotonic() >= until_s:
            raise UnknownOutcome(f"{region}: the placement policy {name} is still being made")
        time.sleep(POLL_S)
        row = _get(clients, region, name)


def find_policies(clients: Clients, deployment: str) -> dict[tuple[str, str], Leftover]:
    """The deployment's, by place, used or not. Raises ProviderError."""
    answers = clients.aggregated(
        "ResourcePolicies", "resource_policies", f'name eq "{PREFIX}.*"', of="regions"
    )
    found = {}
    for region, rows in answers:
        for row in rows:
            tags = _tags(row.description)
            if tags.get(DEPLOYMENT_TAG) == deployment:
                ident, since_us = f"{region}/policy/{row.name}", us_of(row.creation_timestamp)
                left = Leftover(ident, LeftoverKind.GROUP, tags, region, since_us=since_us)
                found[region, row.name] = left
    return found


def place_of(link: str) -> tuple[str, str]:
    """(region, name) of ".../regions/REGION/resourcePolicies/NAME"."""
    return last(link.rpartition("/resourcePolicies/")[0]), last(link)


def discard_policy(clients: Clients, leftover_id: str) -> bool:
    """Delete one; False when that is the name of none. Raises ProviderError."""
    parts = leftover_id.split("/")
    if len(parts) != 3 or parts[1] != "policy":
        return False
    try:
        clients.call("ResourcePolicies", "delete_unary", region=parts[0], resource_policy=parts[2])
    except ProviderError as error:
        if not nobodys(error):
            raise
    return True


def _get(clients: Clients, region: str, name: str) -> Any:
    try:
        return clients.call("ResourcePolicies", "get", region=region, resource_policy=name)
    except ProviderError as error:
        if nobodys(error):
            return None
        raise


def _tags(text: str) -> dict[str, str]:
    pairs = (word.partition("=") for word in text.split())
    return {key: value for key, equals, value in pairs if equals}
