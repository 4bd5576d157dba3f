"""The [providers.NAME] section of the configuration for kind "azure"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from providers.azure.create_machine import DEFAULT_SCHEDULE, PollSchedule
from providers.azure.launch import IMAGE

# Default sizes for GPU jobs; the configuration can name others.
PATTERNS = ("Standard_ND*", "Standard_NC*", "Standard_NV*A10*")


@dataclass(frozen=True)
class Settings:
    """Fields of [providers.NAME].

    `image` is "publisher:offer:sku:version" or an id; `network` is "public", or "private" or
    "jump", where machines have no public address; `node_identity` is the resource id of the
    machines' user-assigned identity; `reservations` maps ids of usable capacity reservation groups
    to the extra cost per hour in micro-USD. Empty endpoints and `authority` (the token service) are
    those of the public cloud.
    """

    subscription_id: str
    resource_group: str
    regions: Sequence[str]
    instance_types: Sequence[str] = PATTERNS
    image: str = IMAGE
    network: str = "public"
    node_identity: str = ""
    reservations: Mapping[str, int] = field(default_factory=dict)
    endpoint: str = ""
    authority: str = ""
    prices_endpoint: str = ""
    timeout_s: float = 10.0
    pace: PollSchedule = DEFAULT_SCHEDULE
