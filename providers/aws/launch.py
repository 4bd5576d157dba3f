"""The parameters of RunInstances, derived from the request alone: equal requests give equal
bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from providers.base import CapacityType, LaunchRequest

ROOT_DEVICE = "/dev/sda1"
MIN_DISK_GIB = 200  # drivers, a container and a copy of the code
TAGGED_RESOURCES = ("instance", "volume", "network-interface")


@dataclass(frozen=True)
class ZoneSetup:
    """The prerequisites of our machines in one zone."""

    image_id: str
    subnet_id: str
    group_ids: tuple[str, ...]
    public: bool
    role: str = ""  # instance profile
    root_device: str = ROOT_DEVICE


@dataclass(frozen=True)
class Fabric:
    """The number of a type's network cards with EFA; 0 for none."""

    cards: int = 0


def run_instances(
    request: LaunchRequest,
    tags: Mapping[str, str],
    zone_setup: ZoneSetup,
    user_data: str,
    fabric: Fabric,
    group: str = "",
) -> dict[str, Any]:
    """Return the parameters of RunInstances for one machine in one subnet, and so in one zone,
    where its client token is idempotent.

    Nothing that it creates outlives the machine, and everything has `tags` from the start. `group`
    is the placement group.
    """
    pairs = [{"Key": key, "Value": value} for key, value in sorted(tags.items())]
    body: dict[str, Any] = {
        "ClientToken": request.token,
        "ImageId": zone_setup.image_id,
        "InstanceType": request.instance_type,
        "MinCount": 1,
        "MaxCount": 1,
        "NetworkInterfaces": _interfaces(request, zone_setup, fabric),
        "UserData": user_data,  # botocore encodes it in base64
        # Two hops, so that a container on the machine can read its notice.
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 2},
        # Power-off, by the machine itself or by its dead-man switch, terminates it.
        "InstanceInitiatedShutdownBehavior": "terminate",
        "BlockDeviceMappings": [
            {
                "DeviceName": zone_setup.root_device,
                "Ebs": {
                    "VolumeSize": max(request.disk_gib, MIN_DISK_GIB),
                    "VolumeType": "gp3",
                    "DeleteOnTermination": True,
                    "Encrypted": True,
                },
            }
        ],
    }
    tagged_resources = [*TAGGED_RESOURCES]
    market = _market(request)
    if market:
        body["InstanceMarketOptions"] = market
    if request.capacity_type is CapacityType.SPOT:
        tagged_resources.append("spot-instances-request")
    if zone_setup.role:
        body["IamInstanceProfile"] = {"Name": zone_setup.role}
    if request.reservation:
        body["CapacityReservationSpecification"] = {
            "CapacityReservationTarget": {"CapacityReservationId": request.reservation}
        }
    if group:
        body["Placement"] = {"GroupName": group}
    body["TagSpecifications"] = [
        {"ResourceType": resource_type, "Tags": pairs} for resource_type in tagged_resources
    ]
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


def _interfaces(
    request: LaunchRequest, zone_setup: ZoneSetup, fabric: Fabric
) -> list[dict[str, Any]]:
    """Return one network interface, or with EFA one per card.

    EC2 gives a public address only to a machine with a single card (InvalidParameterCombination).
    """
    first = {
        "DeviceIndex": 0,
        "SubnetId": zone_setup.subnet_id,
        "Groups": [*zone_setup.group_ids],
        "AssociatePublicIpAddress": zone_setup.public,
        "DeleteOnTermination": True,
    }
    if request.interconnect != "efa" or not fabric.cards:
        return [first]
    if fabric.cards > 1:
        first = first | {"AssociatePublicIpAddress": False}
    others = [
        {
            "DeviceIndex": 1,
            "NetworkCardIndex": card,
            "SubnetId": zone_setup.subnet_id,
            "Groups": [*zone_setup.group_ids],
            "InterfaceType": "efa-only",
            "DeleteOnTermination": True,
        }
        for card in range(1, fabric.cards)
    ]
    return [first | {"InterfaceType": "efa"}, *others]
