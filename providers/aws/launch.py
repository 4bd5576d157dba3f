"""The body of RunInstances, made of a request alone: the same request is the same bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from providers.base import CapacityType, LaunchRequest

ROOT_DEVICE = "/dev/sda1"
LEAST_DISK_GIB = 200  # drivers, a container and a copy of the code
TAGGED = ("instance", "volume", "network-interface")


@dataclass(frozen=True)
class ZoneSetup:
    """What a zone has for our machines."""

    image_id: str
    subnet_id: str
    group_ids: tuple[str, ...]
    public: bool
    role: str = ""  # instance profile
    root_device: str = ROOT_DEVICE


@dataclass(frozen=True)
class Fabric:
    """How many network cards of a type carry EFA; 0 cards: none."""

    cards: int = 0


def run_instances(
    request: LaunchRequest,
    tags: Mapping[str, str],
    site: ZoneSetup,
    user_data: str,
    fabric: Fabric,
    group: str = "",
) -> dict[str, Any]:
    """Parameters of RunInstances: one machine, in one subnet and so in one zone, where its client
    token is idempotent; nothing of it outlives it, and all of it has the `tags` from its start.
    `group` is the placement group that it goes into."""
    pairs = [{"Key": key, "Value": value} for key, value in sorted(tags.items())]
    body: dict[str, Any] = {
        "ClientToken": request.token,
        "ImageId": site.image_id,
        "InstanceType": request.instance_type,
        "MinCount": 1,
        "MaxCount": 1,
        "NetworkInterfaces": _interfaces(request, site, fabric),
        "UserData": user_data,  # in base64 on the wire: botocore does that
        # Two hops, so that a container on the machine hears its notice.
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 2},
        # The machine's own way out, and the dead-man's: off is gone.
        "InstanceInitiatedShutdownBehavior": "terminate",
        "BlockDeviceMappings": [
            {
                "DeviceName": site.root_device,
                "Ebs": {
                    "VolumeSize": max(request.disk_gib, LEAST_DISK_GIB),
                    "VolumeType": "gp3",
                    "DeleteOnTermination": True,
                    "Encrypted": True,
                },
            }
        ],
    }
    tagged = [*TAGGED]
    market = _market(request)
    if market:
        body["InstanceMarketOptions"] = market
    if request.capacity_type is CapacityType.SPOT:
        tagged.append("spot-instances-request")
    if site.role:
        body["IamInstanceProfile"] = {"Name": site.role}
    if request.reservation:
        body["CapacityReservationSpecification"] = {
            "CapacityReservationTarget": {"CapacityReservationId": request.reservation}
        }
    if group:
        body["Placement"] = {"GroupName": group}
    body["TagSpecifications"] = [{"ResourceType": kind, "Tags": pairs} for kind in tagged]
    return body


def _market(request: LaunchRequest) -> dict[str, Any]:
    if request.capacity_type is CapacityType.BLOCK:
        return {"MarketType": "capacity-block"}
    if request.capacity_type is not CapacityType.SPOT:
        return {}
    options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
    if request.max_price_microusd_per_h:
        options["MaxPrice"] = f"{request.max_price_microusd_per_h / 1e6:.6f}"
    return {"MarketType": "spot", "SpotOptions": options}


def _interfaces(request: LaunchRequest, site: ZoneSetup, fabric: Fabric) -> list[dict[str, Any]]:
    """One card, or with EFA all of them: EC2 gives a public address to a machine of one card only
    (InvalidParameterCombination)."""
    first = {
        "DeviceIndex": 0,
        "SubnetId": site.subnet_id,
        "Groups": [*site.group_ids],
        "AssociatePublicIpAddress": site.public,
        "DeleteOnTermination": True,
    }
    if request.interconnect != "efa" or not fabric.cards:
        return [first]
    if fabric.cards > 1:
        first = first | {"AssociatePublicIpAddress": False}
    more = [
        {
            "DeviceIndex": 1,
            "NetworkCardIndex": card,
            "SubnetId": site.subnet_id,
            "Groups": [*site.group_ids],
            "InterfaceType": "efa-only",
            "DeleteOnTermination": True,
        }
        for card in range(1, fabric.cards)
    ]
    return [first | {"InterfaceType": "efa"}, *more]
