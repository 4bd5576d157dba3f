"""Prerequisites of machines in a region: image, subnets, security groups.

They are found by the tag that `spotctl init aws` sets; its value is the kind of network.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from providers.aws.clients import Clients
from providers.aws.launch import ROOT_DEVICE, ZoneSetup
from providers.base import UnpreparedError
from providers.timed_cache import TimedCache

NETWORK_TAG = "spotd-network"
IMAGE = (
    "ssm:/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
)
CACHE_S = 600.0  # a network that has just been repaired is found within this time


@dataclass(frozen=True)
class _Network:
    subnets: dict[str, str]  # zone -> subnet
    groups: tuple[str, ...]


class ZoneSetups:
    """The prerequisites in all regions of one provider. `network` is "public", or "private" or
    "jump", where machines have no public address."""

    def __init__(
        self,
        clients: Clients,
        image: str,
        network: str,
        role: str,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clients = clients
        self._image = image
        self._network = network
        self._role = role
        self._cache = TimedCache(monotonic_s)

    def for_zone(self, region: str, zone: str, image: str = "") -> ZoneSetup:
        """Return the prerequisites for a machine in a zone.

        `image` is an AMI or "ssm:PARAMETER"; "" for the provider's own. Raises ProviderError,
        UnpreparedError when something is missing.
        """
        network = self._cache.get(("network", region), lambda: self._read_network(region), CACHE_S)
        subnet = network.subnets.get(zone)
        if subnet is None:
            zones = ", ".join(sorted(network.subnets)) or "no zone"
            raise UnpreparedError(
                f"{zone} has no subnet with the tag {self._tag} ({zones} of {region} has one): "
                f"{self._fix(region)}"
            )
        if not network.groups:
            raise UnpreparedError(
                f"{region} has no security group with the tag {self._tag}: {self._fix(region)}"
            )
        image_name = image or self._image
        ami, device = self._cache.get(
            (image_name, region), lambda: self._resolve_image(region, image_name), CACHE_S
        )
        return ZoneSetup(ami, subnet, network.groups, self._network == "public", self._role, device)

    @property
    def _tag(self) -> str:
        return f"{NETWORK_TAG}={self._network}"

    def _fix(self, region: str) -> str:
        return f"run `spotctl init aws --network {self._network} --region {region}`"

    def _read_network(self, region: str) -> _Network:
        tagged = [{"Name": f"tag:{NETWORK_TAG}", "Values": [self._network]}]
        rows = self._clients.pages(region, "describe_subnets", "Subnets", Filters=tagged)
        subnets: dict[str, str] = {}
        # The first by id, so that a repeated launch uses the same subnet.
        for row in sorted(rows, key=lambda row: str(row["SubnetId"])):
            subnets.setdefault(row["AvailabilityZone"], row["SubnetId"])
        groups = self._clients.pages(
            region, "describe_security_groups", "SecurityGroups", Filters=tagged
        )
        return _Network(subnets, tuple(sorted(row["GroupId"] for row in groups)))

    def _resolve_image(self, region: str, image_name: str) -> tuple[str, str]:
        """Return (AMI, its root device)."""
        ami = image_name
        try:
            if image_name.startswith("ssm:"):
                parameter = image_name.removeprefix("ssm:")
                answer = self._clients.call(region, "get_parameter", service="ssm", Name=parameter)
                ami = str(answer["Parameter"]["Value"])
            images = self._clients.pages(region, "describe_images", "Images", ImageIds=[ami])
        except UnpreparedError as error:
            raise UnpreparedError(
                f"{_missing_image(region, image_name)} ({error})", code=error.code
            ) from None
        if not images:
            raise UnpreparedError(_missing_image(region, image_name))
        return ami, str(images[0].get("RootDeviceName") or ROOT_DEVICE)


def _missing_image(region: str, image_name: str) -> str:
    return (
        f"{region} has no image {image_name} that this account may use: "
        "name one that it has, by `image` of the provider or image_id of the job"
    )
