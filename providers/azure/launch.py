"""The body of the one PUT that makes a machine: of a request alone, so that the same request is the
same bytes. Its card, address and disk are made with it, and go with it."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from providers.base import CapacityType, LaunchRequest, RejectedError, UnpreparedError

NETWORK_API = "2022-11-01"  # the newest that Compute makes cards with
LEAST_DISK_GIB = 256  # drivers, a container and a copy of the code; the image itself is 128 GiB
IMAGE = "microsoft-dsvm:ubuntu-hpc:2204:latest"
ANYWHERE = "any"  # the regional pool: no zone is named, and Azure chooses
INFINIBAND = "infiniband"
_LEAST_PRICE = 0.00001  # Azure takes five decimals
# Names of machines, as ARM and host names both allow them.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}[A-Za-z0-9_]")


@dataclass(frozen=True)
class RegionSetup:
    """What a region has for our machines, by the names that `spotctl init azure` gives."""

    subscription_id: str
    resource_group: str
    image: str = IMAGE
    public: bool = True
    identity: str = ""  # resource id of the machines' own

    def subnet_id(self, region: str) -> str:
        """The firewall hangs on the subnet."""
        return self._id(f"Microsoft.Network/virtualNetworks/spotd-{region}/subnets/nodes")

    def set_id(self, gang: str) -> str:
        """The availability set of a gang's ranks."""
        return self._id(f"Microsoft.Compute/availabilitySets/{gang}")

    def _id(self, what: str) -> str:
        group = f"/subscriptions/{self.subscription_id}/resourceGroups/{self.resource_group}"
        return f"{group}/providers/{what}"


def zone_name(region: str, zone: str = "") -> str:
    """An offer's zone: "eastus-1", or "eastus-any" for the regional pool."""
    return f"{region}-{zone or ANYWHERE}"


def machine_name(token: str) -> str:
    """What the machine of a token is called. Raises RejectedError for one that no name can be."""
    if not _NAME.fullmatch(token):
        raise RejectedError(f"{token!r} is no name of a machine: 2 to 64 of A-Z a-z 0-9 . - _")
    return token


def virtual_machine(
    request: LaunchRequest,
    tags: Mapping[str, str],
    site: RegionSetup,
    custom_data: str,
    image: str = "",
) -> dict[str, Any]:
    """The body; `image` is the site's when empty. Raises RejectedError and UnpreparedError for what
    Azure has no words for."""
    name = machine_name(request.token)
    properties: dict[str, Any] = {
        **_market(request),
        "hardwareProfile": {"vmSize": request.instance_type},
        "storageProfile": {
            "imageReference": _image(image or site.image),
            "osDisk": {
                "createOption": "FromImage",
                "deleteOption": "Delete",
                "diskSizeGB": max(request.disk_gib, LEAST_DISK_GIB),
                "managedDisk": {"storageAccountType": "Premium_LRS"},
            },
        },
        "osProfile": {
            "computerName": name.replace("_", "-").replace(".", "-").rstrip("-"),
            "adminUsername": request.ssh_user,
            "customData": base64.b64encode(custom_data.encode()).decode(),
            "linuxConfiguration": {
                "disablePasswordAuthentication": True,
                "ssh": {
                    "publicKeys": [
                        {
                            "path": f"/home/{request.ssh_user}/.ssh/authorized_keys",
                            "keyData": request.ssh_public_key.strip(),
                        }
                    ]
                },
            },
        },
        "networkProfile": {
            "networkApiVersion": NETWORK_API,
            "networkInterfaceConfigurations": [_card(request.region, name, tags, site)],
        },
        # What the console said, of a machine that does not boot.
        "diagnosticsProfile": {"bootDiagnostics": {"enabled": True}},
    }
    body: dict[str, Any] = {
        "location": request.region,
        "tags": dict(sorted(tags.items())),
        "properties": properties,
    }
    zone = request.zone.removeprefix(f"{request.region}-")
    if zone != ANYWHERE:
        body["zones"] = [zone]
    if shares_fabric(request):
        properties["availabilitySet"] = {"id": site.set_id(request.gang)}
    if site.identity:
        body["identity"] = {"type": "UserAssigned", "userAssignedIdentities": {site.identity: {}}}
    return body


def shares_fabric(request: LaunchRequest) -> bool:
    """InfiniBand joins the machines of one availability set, which takes no Spot machines and knows
    no zones; a machine by itself has the cards, and nobody to talk to."""
    return bool(request.gang) and request.interconnect == INFINIBAND


def availability_set(request: LaunchRequest, tags: Mapping[str, str]) -> dict[str, Any]:
    """The body of the set of a gang: one fault domain, so that its machines are close together. It
    has the `tags` of the rank that asked first."""
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
        held = {"capacityReservationGroup": {"id": request.reservation}}
        return {"priority": "Regular", "capacityReservation": held}
    if request.capacity_type is not CapacityType.SPOT:
        raise RejectedError(f"{request.capacity_type.value} machines of Azure are not supported")
    # -1 is "whatever it costs", which is never more than on demand.
    price = -1.0
    if request.max_price_microusd_per_h:
        cap = math.floor(request.max_price_microusd_per_h / 10) / 100_000
        price = max(cap, _LEAST_PRICE)
    return {
        "priority": "Spot",
        "evictionPolicy": "Delete",
        "billingProfile": {"maxPrice": price},
    }


def _image(named: str) -> dict[str, str]:
    """ "publisher:offer:sku:version", or the id of an image or of a gallery's."""
    if named.startswith("/"):
        return {"id": named}
    parts = named.split(":")
    if len(parts) != 4 or not all(parts):
        raise UnpreparedError(f"{named!r} is no image: publisher:offer:sku:version, or an id")
    return dict(zip(("publisher", "offer", "sku", "version"), parts, strict=True))


def _card(region: str, name: str, tags: Mapping[str, str], site: RegionSetup) -> dict[str, Any]:
    marks = dict(sorted(tags.items()))
    address: dict[str, Any] = {"primary": True, "subnet": {"id": site.subnet_id(region)}}
    if site.public:
        address["publicIPAddressConfiguration"] = {
            "name": f"{name}-ip",
            "sku": {"name": "Standard", "tier": "Regional"},
            "tags": marks,
            "properties": {"deleteOption": "Delete", "publicIPAllocationMethod": "Static"},
        }
    return {
        "name": f"{name}-nic",
        "tags": marks,
        "properties": {
            "primary": True,
            "deleteOption": "Delete",
            "enableAcceleratedNetworking": True,
            "ipConfigurations": [{"name": "ip", "properties": address}],
        },
    }
