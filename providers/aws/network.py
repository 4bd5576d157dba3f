"""What our machines need in a region and find there: image, subnets, firewall. Found by tag, as
`spotctl init aws` made them: the tag's value is the kind of network."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from providers.aws.clients import Clients
from providers.aws.launch import ROOT_DEVICE, ZoneSetup
from providers.base import UnpreparedError

NETWORK_TAG = "spotd-network"
IMAGE = (
    "ssm:/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
)
FRESH_S = 600.0  # a network that somebody has just mended is found within that


@dataclass(frozen=True)
class _Network:
    subnets: dict[str, str]  # zone -> subnet
    groups: tuple[str, ...]


class ZoneSetups:
    """Of all regions of one provider. `network` is "public", or "private" and "jump", where
    machines have no address of the internet."""

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
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, str], tuple[float, Any]] = {}

    def site(self, region: str, zone: str, image: str = "") -> ZoneSetup:
        """Where a machine of that zone goes; `image` is an AMI or "ssm:PARAMETER", the provider's
        own when empty. Raises ProviderError, UnpreparedError with what is missing."""
        network = self._fresh(("network", region), lambda: self._look(region))
        subnet = network.subnets.get(zone)
        if subnet is None:
            have = ", ".join(sorted(network.subnets)) or "no zone"
            raise UnpreparedError(
                f"{zone} has no subnet with the tag {self._tag} ({have} of {region} has one): "
                f"{self._fix(region)}"
            )
        if not network.groups:
            raise UnpreparedError(
                f"{region} has no security group with the tag {self._tag}: {self._fix(region)}"
            )
        named = image or self._image
        ami, device = self._fresh((named, region), lambda: self._ami(region, named))
        return ZoneSetup(ami, subnet, network.groups, self._network == "public", self._role, device)

    @property
    def _tag(self) -> str:
        return f"{NETWORK_TAG}={self._network}"

    def _fix(self, region: str) -> str:
        return f"run `spotctl init aws --network {self._network} --region {region}`"

    def _look(self, region: str) -> _Network:
        tagged = [{"Name": f"tag:{NETWORK_TAG}", "Values": [self._network]}]
        rows = self._clients.pages(region, "describe_subnets", "Subnets", Filters=tagged)
        subnets: dict[str, str] = {}
        # The first by name, so that a replay of a launch asks for the same one.
        for row in sorted(rows, key=lambda row: str(row["SubnetId"])):
            subnets.setdefault(row["AvailabilityZone"], row["SubnetId"])
        groups = self._clients.pages(
            region, "describe_security_groups", "SecurityGroups", Filters=tagged
        )
        return _Network(subnets, tuple(sorted(row["GroupId"] for row in groups)))

    def _ami(self, region: str, named: str) -> tuple[str, str]:
        """(AMI, its root device)."""
        ami = named
        try:
            if named.startswith("ssm:"):
                parameter = named.removeprefix("ssm:")
                answer = self._clients.call(region, "get_parameter", service="ssm", Name=parameter)
                ami = str(answer["Parameter"]["Value"])
            images = self._clients.pages(region, "describe_images", "Images", ImageIds=[ami])
        except UnpreparedError as error:
            raise UnpreparedError(
                f"{_no_image(region, named)} ({error})", code=error.code
            ) from None
        if not images:
            raise UnpreparedError(_no_image(region, named))
        return ami, str(images[0].get("RootDeviceName") or ROOT_DEVICE)

    def _fresh(self, key: tuple[str, str], read: Callable[[], Any]) -> Any:
        now_s = self._monotonic_s()
        with self._lock:
            until_s, value = self._kept.get(key, (0.0, None))
        if now_s < until_s:
            return value
        value = read()
        with self._lock:
            self._kept[key] = (now_s + FRESH_S, value)
        return value


def _no_image(region: str, named: str) -> str:
    return (
        f"{region} has no image {named} that this account may use: "
        "name one that it has, by `image` of the provider or image_id of the job"
    )
