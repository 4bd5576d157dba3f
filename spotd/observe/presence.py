"""Telling nodes that we are here, and how long they may go on without us.

What they are told is what their expiry tags say: a machine whose expiry could not be moved on has
to save before spot-reaper ends it, though we speak to it.
"""

from __future__ import annotations

from collections.abc import Iterable

import paramiko

from spotd.clock import Clock
from spotd.decide.cadence import WITHIN_S, mtbf_s
from spotd.decide.expiry import expires_us
from spotd.model import Node, S
from spotd.observe.opening import Followed
from spotd.store.base import Store
from spotd.wire import Here

EVERY_S = 60.0
OFTEN = 1 / 96  # of a node's whole time, where that is short
LEAST_S = 0.5


class Presence:
    """Speaks to each followed node now and then. Belongs to the follower's thread."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._told: dict[str, tuple[Followed, float]] = {}  # by node: when its next word is due
        self._looked_s = -LEAST_S

    def tell(self, followed: Iterable[Followed]) -> None:
        """A word to each whose time it is. One that does not take it is lost or slow, which others
        see. Raises StoreError."""
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_s < LEAST_S:
            return
        self._looked_s = now_s
        present = {one.node.id: one for one in followed}
        # Who was lost and is followed anew has not been told.
        self._told = {i: told for i, told in self._told.items() if present.get(i) is told[0]}
        due = [i for i in present if i not in self._told or self._told[i][1] <= now_s]
        if not due:
            return
        now_us = self._clock.now_us()
        for node in self._store.find_nodes(due):
            self._told[node.id] = present[node.id], now_s + _pause_s(node)
            if expires_us(node):
                left_s = (expires_us(node) - now_us) / S
                _say(present[node.id], Here(left_s, self._mtbf_s(node, now_us)))

    def _mtbf_s(self, node: Node, now_us: int) -> float:
        """As the fleet's history has it by now; 0 for a job that does not go by it."""
        job = self._store.find_job(node.job_id)
        if job is None or not job.spec.checkpoint.auto:
            return 0.0
        lives = self._store.lives(now_us - int(WITHIN_S * S))
        return mtbf_s(node.offer, lives, job.spec.num_nodes)


def _pause_s(node: Node) -> float:
    time_s = (node.expires_at_us - node.requested_at_us) / S
    return min(EVERY_S, max(OFTEN * time_s, LEAST_S)) if node.expires_at_us else EVERY_S


def _say(followed: Followed, word: Here) -> None:
    try:
        followed.channel.sendall(word.to_line())
    except (paramiko.SSHException, EOFError, OSError):
        return
