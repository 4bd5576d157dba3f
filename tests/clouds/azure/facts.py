"""Permissions, quotas, images and networks of a subscription, for readiness checks."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from tests.clouds.azure.shapes import problems
from tests.fixtures.later import Later

COMPUTE: Any = Later("azure.mgmt.compute.models")
NETWORK: Any = Later("azure.mgmt.network.models")
QUOTA = 1000
ALL = {"actions": ["*"], "notActions": [], "dataActions": [], "notDataActions": []}
_IMAGE = r"/publishers/([^/]+)/artifacttypes/vmimage/offers/([^/]+)/skus/([^/]+)/versions"

Found = tuple[ModuleType | None, str, Any]  # (models, model, document)


@dataclass
class Facts:
    """`permissions` are the roles in force, `limits` the quotas other than QUOTA, `rules` those of
    the firewall. `wrong` has mismatches with Azure's models."""

    subscription: str
    state: str = "Enabled"
    permissions: list[dict[str, Any]] = field(default_factory=lambda: [dict(ALL)])
    limits: dict[str, int] = field(default_factory=dict)
    architecture: str = "x64"
    sources: list[str] = field(default_factory=lambda: ["203.0.113.7/32"])
    networks: Callable[[str], bool] = lambda region: True
    families: tuple[str, ...] = ()
    wrong: list[str] = field(default_factory=list)

    def answer(self, path: str) -> Any:
        """Return the document at a path; None for another path."""
        for pattern, answer in self._answers():
            result = re.fullmatch(pattern, path, re.IGNORECASE)
            if result:
                models, model, document = answer(*result.groups())
                if document is None:
                    return None
                rows = document.get("value", [document]) if isinstance(document, dict) else document
                if models is not None:
                    self.wrong += [text for row in rows for text in problems(models, model, row)]
                return document
        return None

    def _answers(self) -> list[tuple[str, Callable[..., Found]]]:
        scope = rf"/subscriptions/{self.subscription}(?:/resourceGroups/[^/]+)?"
        location = rf"{scope}/providers/Microsoft.Compute/locations/([^/]+)"
        subnet = r"virtualNetworks/spotd-([^/]+)/subnets/nodes"
        return [
            (rf"/subscriptions/({self.subscription})", self._subscription),
            (rf"{scope}/providers/Microsoft.Authorization/permissions", self._permissions),
            (rf"{location}/usages", self._usages),
            (rf"{location}{_IMAGE}", self._images),
            (rf"{location}{_IMAGE}/([^/]+)", self._image),
            (rf"({scope}/providers/Microsoft.Network)/{subnet}", self._subnet),
            (rf"{scope}/providers/Microsoft.Network/networkSecurityGroups/(.+)", self._firewall),
        ]

    def _subscription(self, ident: str) -> Found:
        reported = {"subscriptionId": ident, "displayName": "The Lab", "state": self.state}
        return None, "", {"id": f"/subscriptions/{ident}", **reported}

    def _permissions(self) -> Found:
        return None, "", {"value": self.permissions}

    def _usages(self, _region: str) -> Found:
        names = ("lowPriorityCores", "cores", *self.families)
        rows = [
            {
                "unit": "Count",
                "currentValue": 0,
                "limit": self.limits.get(name, QUOTA),
                "name": {"value": name, "localizedValue": f"Quota of {name}"},
            }
            for name in names
        ]
        return COMPUTE, "Usage", {"value": rows}

    def _images(self, region: str, publisher: str, offer: str, sku: str) -> Found:
        known = (publisher, offer, sku) == ("microsoft-dsvm", "ubuntu-hpc", "2204")
        rows = [{"name": "22.04.2026110401", "location": region}] if known else []
        return COMPUTE, "VirtualMachineImageResource", rows

    def _image(self, region: str, _publisher: str, _offer: str, _sku: str, version: str) -> Found:
        reported = {"architecture": self.architecture, "hyperVGeneration": "V2"}
        document = {"name": version, "location": region, "properties": reported}
        return COMPUTE, "VirtualMachineImage", document

    def _subnet(self, network: str, region: str) -> Found:
        if not self.networks(region):
            return None, "", None
        firewall = {"id": f"{network}/networkSecurityGroups/spotd-{region}"}
        reported = {"addressPrefix": "10.213.0.0/20", "networkSecurityGroup": firewall}
        return NETWORK, "Subnet", {"name": "nodes", "properties": reported}

    def _firewall(self, name: str) -> Found:
        rules = [
            {
                "name": f"login-{number}",
                "properties": {
                    "protocol": "Tcp",
                    "sourceAddressPrefix": source,
                    "sourcePortRange": "*",
                    "destinationAddressPrefix": "*",
                    "destinationPortRange": "22",
                    "access": "Allow",
                    "priority": 100 + number,
                    "direction": "Inbound",
                },
            }
            for number, source in enumerate(self.sources)
        ]
        document = {"name": name, "properties": {"securityRules": rules}}
        return NETWORK, "NetworkSecurityGroup", document
