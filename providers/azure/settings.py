"""[providers.NAME] of the configuration, of kind "azure"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from providers.azure.create_machine import PATIENT, PollSchedule
from providers.azure.launch import IMAGE

# Sizes that a job for GPUs may run on; others are named in the configuration.
PATTERNS = ("Standard_ND*", "Standard_NC*", "Standard_NV*A10*")


@dataclass(frozen=True)
class Settings:
    """[providers.NAME] of the configuration. `image` is "publisher:offer:sku:version" or an id;
    `network` is "public", or "private" and "jump", where machines have no address of the internet;
    `node_identity` is the resource id of the machines' user assigned identity; `reservations` are
    the ids of capacity reservation groups whose machines may be used, with what an hour of one
    costs on top of what is paid already, in micro-USD. The endpoints and `authority`, where tokens
    come from, are those of the public cloud unless they are given."""

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
    pace: PollSchedule = PATIENT
