"""Send nodes a sign that a daemon is alive, and how long they may continue without one.

The time is that of their expiry tags: a machine whose expiry could not be renewed has to save
before spot-reaper ends it, although the daemon can reach it.
"""

from __future__ import annotations

from collections.abc import Iterable

import paramiko

from spotd.base.clock import Clock
from spotd.domain.node import Node
from spotd.domain.units import S
from spotd.observe.connect import FollowedNode
from spotd.planner.core.checkpoint_interval import WITHIN_S, mtbf_s
from spotd.planner.core.expiry import expires_us
from spotd.store.interface import Store
from spotd.wire import DaemonPresence

EVERY_S = 60.0
OFTEN = 1 / 96  # of a node's whole time, where that is short
LEAST_S = 0.5


class Keepalive:
    """Speaks to each followed node now and then. Belongs to the follower's thread."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._told: dict[str, tuple[FollowedNode, float]] = {}  # by node: when its next word is due
        self._looked_s = -LEAST_S

    def tell(self, followed: Iterable[FollowedNode]) -> None:
        """Send the keepalives that are due. Raises StoreError.

        A node that does not accept one is lost or slow, which others notice.
        """
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_s < LEAST_S:
            return
        self._looked_s = now_s
        present = {one.node.id: one for one in followed}
        # A node that was lost and is followed again has not got the message.
        self._told = {i: sent for i, sent in self._told.items() if present.get(i) is sent[0]}
        due = [i for i in present if i not in self._told or self._told[i][1] <= now_s]
        if not due:
            return
        now_us = self._clock.now_us()
        for node in self._store.nodes.find(due):
            self._told[node.id] = present[node.id], now_s + _pause_s(node)
            if expires_us(node):
                left_s = (expires_us(node) - now_us) / S
                _say(present[node.id], DaemonPresence(left_s, self._mtbf_s(node, now_us)))

    def _mtbf_s(self, node: Node, now_us: int) -> float:
        """Return the fleet's current estimate; 0 for a job that does not use it."""
        job = self._store.jobs.find(node.job_id)
        if job is None or not job.spec.checkpoint.auto:
            return 0.0
        lives = self._store.node_history.observed_lifetimes(now_us - int(WITHIN_S * S))
        return mtbf_s(node.offer, lives, job.spec.resources.num_nodes)


def _pause_s(node: Node) -> float:
    time_s = (node.lease.expires_at_us - node.requested_at_us) / S
    return min(EVERY_S, max(OFTEN * time_s, LEAST_S)) if node.lease.expires_at_us else EVERY_S


def _say(followed: FollowedNode, word: DaemonPresence) -> None:
    try:
        followed.channel.sendall(word.to_line())
    except (paramiko.SSHException, EOFError, OSError):
        return
