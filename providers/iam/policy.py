"""What policy documents are made of: a deployment, its regions and its places in object stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

CONTROL, REAPER, NODE = "control", "reaper", "node"
# What asks AWS to take a spot machine of ours back (a policy more of the control box's), and what
# AWS does that with.
REHEARSE, INTERRUPT = "rehearse", "interrupt"
# What nodes write lies below this; packages and logs of the deployment do not.
NODE_FOLDER = "jobs/"
DEPLOYMENT_TAG = "spotd-deployment"
NAME_PREFIX = "spotd-"  # of every machine

Document = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """A prefix in a bucket; "" is all of it, any other ends with a slash."""

    bucket: str
    prefix: str = ""


@dataclass(frozen=True)
class PolicyFacts:
    """`stores` are URLs of the deployment's own store and of checkpoints, which nodes write to.
    `account` is what else the cloud's names need (AWS: queue, lend, prove; GCP: project; Azure:
    subscription_id, resource_group)."""

    deployment: str
    regions: Sequence[str]
    own_store: str
    checkpoint_store: str
    instance_types: Sequence[str] = ("*",)
    spot_only: bool = False
    account: Mapping[str, str] = field(default_factory=dict)
    job_stores: Sequence[str] = ()  # others that jobs may name for their checkpoints

    def name(self, role: str) -> str:
        """What the policy of a role is called."""
        return f"spotd-{role}-{self.deployment}"

    def own_places(self, scheme: str) -> list[Place]:
        """Where the daemon reads and writes, of this cloud's stores."""
        urls = dict.fromkeys((self.own_store, self.checkpoint_store, *self.job_stores))
        return [place for url in urls if (place := _place(url, scheme)) is not None]

    def node_places(self, scheme: str) -> list[Place]:
        """Where nodes read and write: the folder of jobs alone."""
        urls = dict.fromkeys((self.checkpoint_store, *self.job_stores))
        places = [place for url in urls if (place := _place(url, scheme)) is not None]
        return [Place(place.bucket, place.prefix + NODE_FOLDER) for place in places]


def place_of(url: str) -> Place:
    """Of an object store by its URL, like s3://bucket/prefix."""
    parts = urlsplit(url)
    prefix = parts.path.strip("/")
    return Place(parts.netloc, f"{prefix}/" if prefix else "")


def _place(url: str, scheme: str) -> Place | None:
    return place_of(url) if urlsplit(url).scheme == scheme else None
