"""How long a machine goes on without us, and what ends it then.

Three things end a machine that nobody ends: its agent, spot-reaper, and the cloud. A dead control
box must cost neither a healthy run nor a weekend of leaks, so that their limits are of two kinds.

* What can be moved is short: `limits.unattended_h`. The expiry tag and the agent's count of time
  without us begin anew with every renewal, and every wanted machine is renewed for as long as we
  live. A run that trains is ended by them only after that time without any of us.
* What cannot be moved is long. A cloud's own limit (GCP's maxRunDuration) counts from the start of
  the machine, whether we live or not: as short as the others, it would end a healthy run every day.
  A spot machine seldom lives for a week; one that does loses no more than any other that is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from providers.base import EXPIRES_TAG, UNATTENDED_TAG
from spotd.model import Node, S, Timing
from spotd.states import NodeState

RENEW_SHARE = 1 / 24  # of the time, between renewals: a box that dies leaves what is left of it
LATE_SHARE = 1 / 2  # of the time without a renewal: then a person has to know
LIFE_LIMIT_S = 7 * 86_400  # the least that a limit may be which cannot be moved

_RENEWED = frozenset(
    {NodeState.LAUNCHING, NodeState.BOOTING, NodeState.RUNNING, NodeState.DRAINING}
)


def first_expiry_us(timing: Timing, now_us: int) -> int:
    """The expiry that a machine asked for now is created with, in whole seconds."""
    return ceil(now_us / S + timing.unattended_s) * S


def expiry_tags(node: Node) -> Mapping[str, str]:
    """Tags of the create request: from what is committed, so that a retry is the same request
    whatever the configuration says by then."""
    if not node.expires_at_us:
        return {}
    unattended_s = (node.expires_at_us - node.requested_at_us) // S
    return {EXPIRES_TAG: str(node.expires_at_us // S), UNATTENDED_TAG: str(unattended_s)}


def life_limit_s(node: Node) -> int:
    """The cloud's own limit, for clouds that have one; from what is committed, as above."""
    if not node.expires_at_us:
        return 0
    return max(LIFE_LIMIT_S, 2 * ((node.expires_at_us - node.requested_at_us) // S))


def expires_us(node: Node) -> int:
    """When spot-reaper may end the machine, as far as we know; 0 for one without a tag."""
    return max(node.expires_at_us, node.renewed_until_us)


def renewal_us(node: Node, timing: Timing, now_us: int) -> int:
    """What the node's expiry is to be moved on to now; 0 when it is not to be moved: nobody wants
    the machine, it has not come yet, or it was renewed just now."""
    if node.state not in _RENEWED or not node.instance_id:
        return 0
    fresh_us = int((1 - RENEW_SHARE) * timing.unattended_s * S)
    return first_expiry_us(timing, now_us) if expires_us(node) - now_us < fresh_us else 0


def renewed_late(node: Node, timing: Timing, now_us: int) -> bool:
    """So much of its time has passed without a renewal that a person has to know."""
    if not renewal_us(node, timing, now_us):
        return False
    return expires_us(node) - now_us < LATE_SHARE * timing.unattended_s * S
