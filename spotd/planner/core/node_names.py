"""Derive names, tags and tokens, so that a retry of the same intent is the same request."""

from __future__ import annotations

import base64
import hashlib

from providers.base import Offer
from spotd.domain.node import Node


def node_id(job_id: str, generation: int, rank: int, candidate: int) -> str:
    """Identity of a node's row."""
    return f"{job_id}-g{generation}-c{candidate}-r{rank}"


def machine_tags(
    deployment: str, *, job_id: str, generation: int, rank: int, token: str
) -> dict[str, str]:
    """Return the tags by which a machine's job, attempt and launch are found again."""
    return {
        "spotd-deployment": deployment,
        "spotd-job": job_id,
        "spotd-generation": str(generation),
        "spotd-rank": str(rank),
        "spotd-token": token,
    }


def launch_token(deployment: str, node: str, offer: Offer, asked_at_us: int) -> str:
    """Return the idempotency token of one launch: at most 64 ASCII characters, lower case.

    It contains the location (through the hash), because AWS client tokens are zonal: the same token
    in another zone would launch a second machine. It contains the time of the intent, which is on
    record before the call: a restored database would otherwise use names a second time, and a cloud
    that remembers the first request would reject the second or return the first machine.
    """
    return f"spotd-{node}-{_digest(deployment, node, offer, asked_at_us)}"


def gang_name(deployment: str, node: Node) -> str:
    """Return the name that the ranks of one candidate share: at most 64 ASCII characters, lower
    case.

    Like a token it differs for every intent and place.
    """
    gang = node.id.rpartition("-r")[0]
    return f"spotd-{gang}-{_digest(deployment, gang, node.offer, node.requested_at_us)}"


def _digest(deployment: str, who: str, offer: Offer, asked_at_us: int) -> str:
    intent = f"{deployment}\n{who}\n{offer.key}\n{asked_at_us}"
    return base64.b32encode(hashlib.sha256(intent.encode()).digest())[:10].decode().lower()
