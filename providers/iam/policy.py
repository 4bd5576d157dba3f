"""The inputs of IAM policy documents: a deployment, its regions and its prefixes in object
stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

CONTROL, REAPER, NODE = "control", "reaper", "node"
# On AWS: an additional policy of the control box for requesting spot interruptions, and the role
# with which AWS carries them out.
REHEARSE, INTERRUPT = "rehearse", "interrupt"
# Nodes write below this folder; packages and logs of the deployment are outside it.
NODE_FOLDER = "jobs/"
DEPLOYMENT_TAG = "spotd-deployment"
NAME_PREFIX = "spotd-"  # of every machine

Document = dict[str, Any]


@dataclass(frozen=True)
class StorePrefix:
    """A prefix in a bucket: "" for the whole bucket, any other ends with a slash."""

    bucket: str
    prefix: str = ""


@dataclass(frozen=True)
class PolicyFacts:
    """The deployment that policies are written for.

    `own_store` and `checkpoint_store` are URLs; nodes write to the latter. `account` has what else
    the names of the cloud's resources need (AWS: queue, lend, prove; GCP: project; Azure:
    subscription_id, resource_group).
    """

    deployment: str
    regions: Sequence[str]
    own_store: str
    checkpoint_store: str
    instance_types: Sequence[str] = ("*",)
    spot_only: bool = False
    account: Mapping[str, str] = field(default_factory=dict)
    job_stores: Sequence[str] = ()  # further stores that jobs may name for their checkpoints

    def name(self, role: str) -> str:
        """Return the name of a role's policy."""
        return f"spotd-{role}-{self.deployment}"

    def control_prefixes(self, scheme: str) -> list[StorePrefix]:
        """Return the prefixes in this cloud's stores that the daemon reads and writes."""
        urls = dict.fromkeys((self.own_store, self.checkpoint_store, *self.job_stores))
        return [prefix for url in urls if (prefix := _prefix_on(url, scheme)) is not None]

    def node_prefixes(self, scheme: str) -> list[StorePrefix]:
        """Return the prefixes that nodes read and write: only the folder of jobs."""
        urls = dict.fromkeys((self.checkpoint_store, *self.job_stores))
        prefixes = [prefix for url in urls if (prefix := _prefix_on(url, scheme)) is not None]
        return [StorePrefix(prefix.bucket, prefix.prefix + NODE_FOLDER) for prefix in prefixes]


def parse_store_url(url: str) -> StorePrefix:
    """Split the URL of an object store, like s3://bucket/prefix."""
    parts = urlsplit(url)
    prefix = parts.path.strip("/")
    return StorePrefix(parts.netloc, f"{prefix}/" if prefix else "")


def _prefix_on(url: str, scheme: str) -> StorePrefix | None:
    return parse_store_url(url) if urlsplit(url).scheme == scheme else None
