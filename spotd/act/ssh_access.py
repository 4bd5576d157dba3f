"""SSH access of users to jobs' machines: grant it by their own key, revoke it when disabled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from spotd.act.node_link import LinkError
from spotd.base.clock import Clock
from spotd.base.errors import UserError
from spotd.domain.node import Node
from spotd.security.secrets import JobKeys
from spotd.store.interface import Store

CALL_S = 20.0  # to let somebody in, or put them out
SIDE_BY_SIDE = 32  # machines asked at once to put somebody out


class AccessLink(Protocol):
    """The calls to a node that access needs; see `act.link.SshLink`."""

    def admit(
        self, node: Node, keys: JobKeys, user: str, public_key: str, deadline_s: float
    ) -> None: ...

    def dismiss(self, node: Node, keys: JobKeys, user: str, deadline_s: float) -> None: ...


class SshAccess:
    """Grants and revokes access, for the API and a periodic task."""

    def __init__(self, link: AccessLink, keys: Callable[[str], JobKeys], clock: Clock) -> None:
        self._link = link
        self._keys = keys
        self._clock = clock

    def admit(self, store: Store, node: Node, user: str, public_key: str) -> None:
        """Grant a user access, recorded first. Raises LinkError.

        A key that is not on record would never be removed.
        """
        store.users.add_admission(node.id, user, self._clock.now_us())
        self._link.admit(node, self._keys(node.job_id), user, public_key, CALL_S)

    def end_access_of_disabled_users(self, store: Store) -> dict[str, str]:
        """Revoke disabled users' access on every machine that may have it.

        Returns node id -> "", or why it failed; those are retried the next time. Someone waits for
        the answer, so machines are asked in parallel, and fifty dead ones take the time of two
        calls.
        """
        users = defaultdict[str, list[str]](list)
        for node_id, user in store.users.admitted_though_disabled():
            users[node_id].append(user)

        def put(node: Node) -> str:
            return "; ".join(
                filter(None, dict.fromkeys(self._dismiss(store, node, u) for u in users[node.id]))
            )

        nodes = store.nodes.find(list(users))
        with ThreadPoolExecutor(SIDE_BY_SIDE) as lanes:
            return {node.id: why for node, why in zip(nodes, lanes.map(put, nodes), strict=True)}

    def _dismiss(self, store: Store, node: Node, user: str) -> str:
        asked_at_us = self._clock.now_us()
        try:
            self._link.dismiss(node, self._keys(node.job_id), user, CALL_S)
        except (LinkError, UserError) as error:
            return str(error)
        store.users.record_dismissed(node.id, user, asked_at_us)
        return ""
