"""[providers.NAME] of the configuration, of kind "gcp"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

IMAGE = (
    "projects/ubuntu-os-accelerator-images/global/images/family/"
    "ubuntu-accelerator-2404-amd64-with-nvidia-580"
)
# Machine types with GPUs of their own; others are named in the configuration.
PATTERNS = ("a2*", "a3*", "a4*", "g2*")


@dataclass(frozen=True)
class Settings:
    """[providers.NAME] of the configuration. `image` is a link without its host; `network` is
    "public", or "private" and "jump", where machines have no address of the internet; `subnetwork`
    is its name in each region, and `fabric` what the names of those for GPUDirect begin with, ""
    where there are none; `reservations` are those ("ZONE/NAME") whose machines may be used, with
    what an hour of one costs on top of what is paid already, in micro-USD; `patience_s` is how long
    a launch waits for its operation."""

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
    services_endpoint: str = ""  # of quotas and of the project's rights
    timeout_s: float = 10.0
    patience_s: float = 5.0

    def endpoints(self) -> dict[str, str]:
        """Service -> its address, where that is not Google's own."""
        return {
            "compute": self.compute_endpoint,
            "cloudbilling": self.billing_endpoint,
            "cloudquotas": self.services_endpoint,
            "cloudresourcemanager": self.services_endpoint,
        }
