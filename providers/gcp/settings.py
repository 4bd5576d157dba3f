"""The [providers.NAME] section of the configuration for kind "gcp"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

IMAGE = (
    "projects/ubuntu-os-accelerator-images/global/images/family/"
    "ubuntu-accelerator-2404-amd64-with-nvidia-580"
)
# Default machine types: those with built-in GPUs; the configuration can name others.
PATTERNS = ("a2*", "a3*", "a4*", "g2*")


@dataclass(frozen=True)
class Settings:
    """Fields of [providers.NAME].

    `image` is a link without its host; `network` is "public", or "private" or "jump", where
    machines have no public address; `subnetwork` is the name in each region; `fabric` is the name
    prefix of GPUDirect subnetworks, "" without them; `reservations` maps usable reservations
    ("ZONE/NAME") to their extra cost per hour in micro-USD; `patience_s` is how long a launch waits
    for its operation.
    """

    project: str
    regions: Sequence[str]
    credentials_file: Path | None = None
    instance_types: Sequence[str] = PATTERNS
    image: str = IMAGE
    network: str = "public"
    subnetwork: str = "spotd"
    fabric: str = ""
    reservations: Mapping[str, int] = field(default_factory=dict)
    flex_start: bool = False
    node_service_account: str = ""
    compute_endpoint: str = ""
    billing_endpoint: str = ""
    services_endpoint: str = ""  # of Cloud Quotas and Cloud Resource Manager
    timeout_s: float = 10.0
    patience_s: float = 5.0

    def endpoints(self) -> dict[str, str]:
        """Return service -> address, "" for Google's own."""
        return {
            "compute": self.compute_endpoint,
            "cloudbilling": self.billing_endpoint,
            "cloudquotas": self.services_endpoint,
            "cloudresourcemanager": self.services_endpoint,
        }
