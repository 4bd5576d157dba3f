"""Limits of a machine's life without the daemon.

The agent, spot-reaper and the cloud can each end a machine. A dead control box must cost neither a
healthy run nor a weekend of leaked machines, so there are two kinds of limits.

* Limits that can be moved are short: `limits.unattended_h`. Every renewal restarts the expiry tag
  and the agent's count, and wanted machines are renewed as long as a daemon lives.
* Limits that cannot be moved are long. A cloud's own limit (GCP's maxRunDuration) counts from the
  start of the machine. A short one would end a healthy run every day; spot machines seldom live for
  a week.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from providers.base import EXPIRES_TAG, UNATTENDED_TAG
from spotd.domain.market import Timing
from spotd.domain.node import Node
from spotd.domain.states import NodeState
from spotd.domain.units import S

RENEW_SHARE = 1 / 24  # of the time, between renewals: a box that dies leaves what is left of it
LATE_SHARE = 1 / 2  # of the time without a renewal: then a person has to know
LIFE_LIMIT_S = 7 * 86_400  # the least that a limit may be which cannot be moved

_RENEWED = frozenset(
    {NodeState.LAUNCHING, NodeState.BOOTING, NodeState.RUNNING, NodeState.DRAINING}
)


def first_expiry_us(timing: Timing, now_us: int) -> int:
    """Return the expiry of a machine that is requested now, in whole seconds."""
    return ceil(now_us / S + timing.unattended_s) * S


def expiry_tags(node: Node) -> Mapping[str, str]:
    """Return the tags of the create request.

    They come from committed values, so that a retry is the same request even if the configuration
    has changed.
    """
    if not node.lease.expires_at_us:
        return {}
    unattended_s = (node.lease.expires_at_us - node.requested_at_us) // S
    return {EXPIRES_TAG: str(node.lease.expires_at_us // S), UNATTENDED_TAG: str(unattended_s)}


def life_limit_s(node: Node) -> int:
    """Return the cloud's own limit, for clouds that have one, from committed values as above."""
    if not node.lease.expires_at_us:
        return 0
    return max(LIFE_LIMIT_S, 2 * ((node.lease.expires_at_us - node.requested_at_us) // S))


def expires_us(node: Node) -> int:
    """Return when spot-reaper may end the machine as far as known; 0 without a tag."""
    return max(node.lease.expires_at_us, node.lease.renewed_until_us)


def renewal_us(node: Node, timing: Timing, now_us: int) -> int:
    """Return the new expiry of the node, or 0 if it is not to be moved.

    It is not moved if the machine is not wanted, does not exist yet, or was renewed recently.
    """
    if node.state not in _RENEWED or not node.instance_id:
        return 0
    fresh_us = int((1 - RENEW_SHARE) * timing.unattended_s * S)
    return first_expiry_us(timing, now_us) if expires_us(node) - now_us < fresh_us else 0


def renewed_late(node: Node, timing: Timing, now_us: int) -> bool:
    """Return whether a renewal is so late that a person has to know."""
    if not renewal_us(node, timing, now_us):
        return False
    return expires_us(node) - now_us < LATE_SHARE * timing.unattended_s * S
