"""The [providers.NAME] section of the configuration for kind "aws"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from providers.aws.network import IMAGE

# Default machine types for GPU jobs; the configuration can name others.
PATTERNS = ("p3*", "p4*", "p5*", "p6*", "g4dn*", "g5*", "g6*")


@dataclass(frozen=True)
class Settings:
    """Fields of [providers.NAME].

    `image` is an AMI or "ssm:PARAMETER"; `network` is "public", or "private" or "jump", where
    machines have no public address; `queue` is the SQS queue in each region that EventBridge fills;
    `reservations` maps usable capacity reservations and blocks to their extra cost per hour in
    micro-USD.
    """

    regions: Sequence[str]
    profile: str = ""
    instance_types: Sequence[str] = PATTERNS
    image: str = IMAGE
    network: str = "public"
    node_role: str = ""
    queue: str = ""
    reservations: Mapping[str, int] = field(default_factory=dict)
    timeout_s: float = 10.0
