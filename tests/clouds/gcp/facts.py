"""Permissions, quotas, images and a network of a project, for readiness checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.clouds.gcp.account import Account, Asked
from tests.clouds.gcp.discovery import Api, Method, api
from tests.clouds.gcp.machines import Machines
from tests.clouds.gcp.replies import Row, not_found

QUOTA = 64.0
_IMAGES = {"ubuntu-accelerator-2404-amd64-with-nvidia-580": "X86_64", "baked": "X86_64"}


class _Quotas(Api):
    """Cloud Quotas, which Google's package does not describe: as in its documentation."""

    def __init__(self) -> None:
        super().__init__("cloudbilling.v1")

    def method(self, verb: str, path: str) -> Method:
        parts = path.split("/")
        passed = {"project": parts[3], "quota": parts[9]}
        return Method("cloudquotas.quotaInfos.get", self.common, "", "", passed)

    def check(self, schema: str, value: Any) -> None:
        """Accept everything: there is no description."""


def description(path: str) -> Api:
    """Return the description of a service that has one."""
    if path.startswith("/compute/"):
        return api("compute.v1")
    if path.startswith("/v3/projects/"):
        return api("cloudresourcemanager.v3")
    if "/quotaInfos/" in path:
        return _Quotas()
    if path.startswith("/v1/operations/"):
        return api("serviceusage.v1")
    if path.startswith("/v1/projects/"):
        return api("serviceusage.v1" if path.split("/")[4] == "services" else "iam.v1")
    return api("cloudbilling.v1")


@dataclass
class Facts:
    """`denied` are permissions that nobody has, `limits` quotas of a region other than QUOTA,
    `unknown` missing quotas, `rules` the firewall rules for SSH."""

    machines: Machines
    denied: set[str] = field(default_factory=set)
    limits: dict[tuple[str, str], float] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    images: dict[str, str] = field(default_factory=lambda: dict(_IMAGES))
    sources: list[str] = field(default_factory=lambda: ["203.0.113.7/32"])
    account: Account = field(default_factory=Account)

    def answers(self) -> dict[str, Callable[[Asked], Row]]:
        return {
            "cloudresourcemanager.projects.testIamPermissions": self._rights,
            "cloudquotas.quotaInfos.get": self._quota,
            "compute.images.getFromFamily": lambda asked: self._image(asked.given["family"]),
            "compute.images.get": self._image_of,
            "compute.subnetworks.get": self._subnetwork,
            "compute.firewalls.list": self._firewalls,
            **self.account.answers(),
        }

    def _rights(self, asked: Asked) -> Row:
        wanted = asked.body["permissions"]
        return {"permissions": [item for item in wanted if item not in self.denied]}

    def _quota(self, asked: Asked) -> Row:
        name = asked.given["quota"]
        if name in self.unknown:
            raise not_found(f"quotaInfos/{name}")
        regional = "per-project-region" in name
        family = {"gpu_family": "NVIDIA_H100"} if "FAMILY" in name else {}
        rows: list[Row] = [{"dimensions": family, "details": {"value": str(int(QUOTA))}}]
        rows += [
            {"dimensions": {"region": region, **family}, "details": {"value": str(int(value))}}
            for (quota, region), value in self.limits.items()
            if quota == name and regional
        ]
        if not regional and (name, "") in self.limits:
            rows = [{"dimensions": {}, "details": {"value": str(int(self.limits[name, ""]))}}]
        return {"quotaId": name, "service": "compute.googleapis.com", "dimensionsInfos": rows}

    def _image_of(self, asked: Asked) -> Row:
        """Return a created image, or a predefined one."""
        name = asked.given["image"]
        return asked.project.images.get(name) or self._image(name)

    def _image(self, name: str) -> Row:
        if name not in self.images:
            raise not_found(f"images/{name}")
        return {"name": name, "status": "READY", "architecture": self.images[name]}

    def _subnetwork(self, asked: Asked) -> Row:
        if asked.project.name in self.account.empty:
            return self.account.find(asked)
        name, region = asked.given["subnetwork"], asked.given["region"]
        if name not in self.machines.subnetworks:
            raise not_found(f"regions/{region}/subnetworks/{name}")
        return {"name": name, "network": _network(asked), "privateIpGoogleAccess": False}

    def _firewalls(self, asked: Asked) -> Row:
        ssh = {"IPProtocol": "tcp", "ports": ["22"]}
        rows: list[Row] = [
            {
                "name": "login",
                "network": _network(asked),
                "direction": "INGRESS",
                "sourceRanges": self.sources,
                "targetTags": ["spotd"],
                "allowed": [ssh],
            },
            # None of these is a way to machines of ours.
            {
                "name": "web",
                "network": _network(asked),
                "direction": "INGRESS",
                "sourceRanges": ["0.0.0.0/0"],
                "targetTags": ["web"],
                "allowed": [ssh],
            },
            {
                "name": "off",
                "network": _network(asked),
                "direction": "INGRESS",
                "disabled": True,
                "sourceRanges": ["0.0.0.0/0"],
                "allowed": [ssh],
            },
            {
                "name": "out",
                "network": _network(asked),
                "direction": "EGRESS",
                "destinationRanges": ["0.0.0.0/0"],
                "allowed": [ssh],
            },
            {
                "name": "elsewhere",
                "network": _network(asked) + "-of-others",
                "direction": "INGRESS",
                "sourceRanges": ["0.0.0.0/0"],
                "allowed": [ssh],
            },
        ]
        return {"kind": "compute#firewallList", "items": rows if self.sources else rows[1:]}


def _network(asked: Asked) -> str:
    host = "https://www.googleapis.com/compute/v1"
    return f"{host}/projects/{asked.project.name}/global/networks/spotd"
