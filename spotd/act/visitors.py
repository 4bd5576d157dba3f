"""Users on the jobs' machines: let in with a key of their own, put out when they are disabled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from spotd.act.node_link import LinkError
from spotd.clock import Clock
from spotd.errors import UserError
from spotd.model import Node
from spotd.store.base import Store
from spotd.vault import JobKeys

CALL_S = 20.0  # to let somebody in, or put them out
SIDE_BY_SIDE = 32  # machines asked at once to put somebody out


class VisitorLink(Protocol):
    """What it takes on a node; see `act.link.SshLink`."""

    def admit(
        self, node: Node, keys: JobKeys, user: str, public_key: str, deadline_s: float
    ) -> None: ...

    def dismiss(self, node: Node, keys: JobKeys, user: str, deadline_s: float) -> None: ...


class Visitors:
    """What the door and a duty ask for, each with the store that it may write to."""

    def __init__(self, link: VisitorLink, keys: Callable[[str], JobKeys], clock: Clock) -> None:
        self._link = link
        self._keys = keys
        self._clock = clock

    def admit(self, store: Store, node: Node, user: str, public_key: str) -> None:
        """Let a user in. On record first: a key that nobody knows of would never be taken away.
        Raises LinkError."""
        store.add_admission(node.id, user, self._clock.now_us())
        self._link.admit(node, self._keys(node.job_id), user, public_key, CALL_S)

    def put_out(self, store: Store) -> dict[str, str]:
        """Have every machine that may let a disabled user in do so no more. Node id -> "", or why
        it did not; it is asked again the next time. Someone waits for the answer: machines are
        asked side by side, so that fifty dead ones take two calls' time."""
        users = defaultdict[str, list[str]](list)
        for node_id, user in store.shut_out():
            users[node_id].append(user)

        def put(node: Node) -> str:
            return "; ".join(
                filter(None, dict.fromkeys(self._dismiss(store, node, u) for u in users[node.id]))
            )

        nodes = store.find_nodes(list(users))
        with ThreadPoolExecutor(SIDE_BY_SIDE) as lanes:
            return {node.id: why for node, why in zip(nodes, lanes.map(put, nodes), strict=True)}

    def _dismiss(self, store: Store, node: Node, user: str) -> str:
        asked_at_us = self._clock.now_us()
        try:
            self._link.dismiss(node, self._keys(node.job_id), user, CALL_S)
        except (LinkError, UserError) as error:
            return str(error)
        store.record_dismissed(node.id, user, asked_at_us)
        return ""
