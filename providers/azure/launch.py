"""The body of the PUT that creates a machine, derived from the request alone: equal requests give
equal bytes. Interface, address and disk are created with the machine and deleted with it."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from providers.base import CapacityType, LaunchRequest, RejectedError, UnpreparedError

NETWORK_API = "2022-11-01"  # the newest version that Compute supports for interfaces
MIN_DISK_GIB = 256  # drivers, a container and a copy of the code; the image itself is 128 GiB
IMAGE = "microsoft-dsvm:ubuntu-hpc:2204:latest"
REGIONAL = "any"  # the regional pool: Azure chooses the zone
INFINIBAND = "infiniband"
_MIN_PRICE_USD = 0.00001  # Azure accepts five decimals
# Machine names that are valid both for ARM and as host names.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}[A-Za-z0-9_]")


@dataclass(frozen=True)
class RegionSetup:
    """The prerequisites of our machines, by the names that `spotctl init azure` uses."""

    subscription_id: str
    resource_group: str
    image: str = IMAGE
    public: bool = True
    identity: str = ""  # resource id of the machines' identity

    def subnet_id(self, region: str) -> str:
        """Return the resource id of the region's subnet, which has the firewall."""
        return self._id(f"Microsoft.Network/virtualNetworks/spotd-{region}/subnets/nodes")

    def set_id(self, gang: str) -> str:
        """Return the resource id of a gang's availability set."""
        return self._id(f"Microsoft.Compute/availabilitySets/{gang}")

    def _id(self, resource: str) -> str:
        group = f"/subscriptions/{self.subscription_id}/resourceGroups/{self.resource_group}"
        return f"{group}/providers/{resource}"


def zone_name(region: str, zone: str = "") -> str:
    """Return an offer's zone: "eastus-1", or "eastus-any" for the regional pool."""
    return f"{region}-{zone or REGIONAL}"


def machine_name(token: str) -> str:
    """Return the machine name of a token. Raises RejectedError for an invalid name."""
    if not _NAME.fullmatch(token):
        raise RejectedError(f"{token!r} is not a valid machine name: 2 to 64 of A-Z a-z 0-9 . - _")
    return token


def machine_body(
    request: LaunchRequest,
    tags: Mapping[str, str],
    region_setup: RegionSetup,
    custom_data: str,
    image: str = "",
) -> dict[str, Any]:
    """Return the body; `image` "" is the region setup's.

    Raises RejectedError and UnpreparedError for a request that Azure cannot express.
    """
    name = machine_name(request.token)
    properties: dict[str, Any] = {
        **_market(request),
        "hardwareProfile": {"vmSize": request.instance_type},
        "storageProfile": {
            "imageReference": _image_reference(image or region_setup.image),
            "osDisk": {
                "createOption": "FromImage",
                "deleteOption": "Delete",
                "diskSizeGB": max(request.disk_gib, MIN_DISK_GIB),
                "managedDisk": {"storageAccountType": "Premium_LRS"},
            },
        },
        "osProfile": _os_profile(request, name, custom_data),
        "networkProfile": {
            "networkApiVersion": NETWORK_API,
            "networkInterfaceConfigurations": [
                _interface(request.region, name, tags, region_setup)
            ],
        },
        # For the serial console of a machine that does not boot.
        "diagnosticsProfile": {"bootDiagnostics": {"enabled": True}},
    }
    body: dict[str, Any] = {
        "location": request.region,
        "tags": dict(sorted(tags.items())),
        "properties": properties,
    }
    zone = request.zone.removeprefix(f"{request.region}-")
    if zone != REGIONAL:
        body["zones"] = [zone]
    if needs_availability_set(request):
        properties["availabilitySet"] = {"id": region_setup.set_id(request.gang)}
    if region_setup.identity:
        body["identity"] = {
            "type": "UserAssigned",
            "userAssignedIdentities": {region_setup.identity: {}},
        }
    return body


def _os_profile(request: LaunchRequest, name: str, custom_data: str) -> dict[str, Any]:
    key = {
        "path": f"/home/{request.ssh_user}/.ssh/authorized_keys",
        "keyData": request.ssh_public_key.strip(),
    }
    return {
        "computerName": name.replace("_", "-").replace(".", "-").rstrip("-"),
        "adminUsername": request.ssh_user,
        "customData": base64.b64encode(custom_data.encode()).decode(),
        "linuxConfiguration": {
            "disablePasswordAuthentication": True,
            "ssh": {"publicKeys": [key]},
        },
    }


def needs_availability_set(request: LaunchRequest) -> bool:
    """Whether the machine needs an availability set: InfiniBand connects only machines of one set.

    A set allows no Spot machines and has no zones. A single machine has nobody to connect to.
    """
    return bool(request.gang) and request.interconnect == INFINIBAND


def availability_set_body(request: LaunchRequest, tags: Mapping[str, str]) -> dict[str, Any]:
    """Return the body of a gang's availability set: one fault domain, so that its machines are
    close together. The `tags` are those of the first rank."""
    return {
        "location": request.region,
        "tags": dict(sorted(tags.items())),
        "sku": {"name": "Aligned"},
        "properties": {"platformFaultDomainCount": 1, "platformUpdateDomainCount": 1},
    }


def _market(request: LaunchRequest) -> dict[str, Any]:
    if request.capacity_type is CapacityType.ON_DEMAND:
        return {"priority": "Regular"}
    if request.capacity_type is CapacityType.RESERVED and request.reservation:
        reservation = {"capacityReservationGroup": {"id": request.reservation}}
        return {"priority": "Regular", "capacityReservation": reservation}
    if request.capacity_type is not CapacityType.SPOT:
        raise RejectedError(f"{request.capacity_type.value} machines of Azure are not supported")
    # -1 means no limit, which is never more than the on-demand price.
    price = -1.0
    if request.max_price_microusd_per_h:
        max_usd = math.floor(request.max_price_microusd_per_h / 10) / 100_000
        price = max(max_usd, _MIN_PRICE_USD)
    return {
        "priority": "Spot",
        "evictionPolicy": "Delete",
        "billingProfile": {"maxPrice": price},
    }


def _image_reference(image: str) -> dict[str, str]:
    """Parse "publisher:offer:sku:version", or the id of an image or a gallery image."""
    if image.startswith("/"):
        return {"id": image}
    parts = image.split(":")
    if len(parts) != 4 or not all(parts):
        raise UnpreparedError(
            f"{image!r} is not an image: use publisher:offer:sku:version, or an id"
        )
    return dict(zip(("publisher", "offer", "sku", "version"), parts, strict=True))


def _interface(
    region: str, name: str, tags: Mapping[str, str], region_setup: RegionSetup
) -> dict[str, Any]:
    sorted_tags = dict(sorted(tags.items()))
    address: dict[str, Any] = {"primary": True, "subnet": {"id": region_setup.subnet_id(region)}}
    if region_setup.public:
        address["publicIPAddressConfiguration"] = {
            "name": f"{name}-ip",
            "sku": {"name": "Standard", "tier": "Regional"},
            "tags": sorted_tags,
            "properties": {"deleteOption": "Delete", "publicIPAllocationMethod": "Static"},
        }
    return {
        "name": f"{name}-nic",
        "tags": sorted_tags,
        "properties": {
            "primary": True,
            "deleteOption": "Delete",
            "enableAcceleratedNetworking": True,
            "ipConfigurations": [{"name": "ip", "properties": address}],
        },
    }
