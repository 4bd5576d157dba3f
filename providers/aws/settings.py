"""[providers.NAME] of the configuration, of kind "aws"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from providers.aws.network import IMAGE

# Machine types that a job for GPUs may run on; others are named in the configuration.
PATTERNS = ("p3*", "p4*", "p5*", "p6*", "g4dn*", "g5*", "g6*")


@dataclass(frozen=True)
class Settings:
    """[providers.NAME] of the configuration. `image` is an AMI or "ssm:PARAMETER"; `network` is
    "public", or "private" and "jump", where machines have no address of the internet; `queue` is
    the SQS queue of each region that EventBridge fills; `reservations` are the capacity
    reservations and blocks whose machines may be used, with what an hour of one costs on top of
    what is paid already, in micro-USD."""

    regions: Sequence[str]
    profile: str = ""
    instance_types: Sequence[str] = PATTERNS
    image: str = IMAGE
    network: str = "public"
    node_role: str = ""
    queue: str = ""
    reservations: Mapping[str, int] = field(default_factory=dict)
    timeout_s: float = 10.0
