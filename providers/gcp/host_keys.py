"""SSH host keys of machines, which the guest agent publishes at first boot."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from providers.base import ProviderError, parse_timestamp_us
from providers.gcp.clients import Clients
from providers.gcp.codes import is_not_found
from providers.gcp.names import link_name

log = logging.getLogger(__name__)

ANSWER_S = 3.0
# A machine that has published no key by then will not publish one. It is queried once more after a
# restart of the daemon.
BOOTED_S = 1800.0
KINDS = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ssh-rsa")  # in order of preference


class HostKeys:
    """Host keys by machine; each is fetched until it is known."""

    def __init__(self, clients: Clients, wall_s: Callable[[], float] = time.time) -> None:
        self._clients = clients
        self._wall_s = wall_s
        self._lock = threading.Lock()
        self._known: dict[int, str] = {}  # by instance number; "": none published yet
        self._warned = False

    def of(self, machines: Iterable[Any]) -> dict[int, str]:
        """Return host keys by instance number; "" for machines that have not published one yet.

        A failed fetch does not fail the listing; it is retried with the next one.
        """
        machines = list(machines)
        with self._lock:
            ids = {machine.id for machine in machines}
            self._known = {n: key for n, key in self._known.items() if n in ids}
            due = [m for m in machines if m.status == "RUNNING" and self._is_due(m)]
        fetched = dict(self._clients.map_parallel(due, self._fetch))
        with self._lock:
            self._known |= fetched
            return dict(self._known)

    def _is_due(self, machine: Any) -> bool:
        known = self._known.get(machine.id)
        age_s = self._wall_s() - parse_timestamp_us(machine.creation_timestamp) / 1e6
        return known is None or (not known and age_s < BOOTED_S)

    def _fetch(self, machine: Any) -> tuple[int, str]:
        try:
            answer = self._clients.call(
                "Instances",
                "get_guest_attributes",
                timeout_s=ANSWER_S,
                zone=link_name(machine.zone),
                instance=machine.name,
                query_path="hostkeys/",
            )
        except ProviderError as error:
            if not is_not_found(error) and not self._warned:
                self._warned = True
                log.warning("cannot read the host keys of machines: %s", error)
            return machine.id, ""
        return machine.id, read_host_key(answer)


def read_host_key(answer: Any) -> str:
    """Return the key to pin in known_hosts form ("ssh-ed25519 AAAA…"); "" when there is none."""
    keys = {item.key: item.value for item in answer.query_value.items if item.value}
    return next((f"{kind} {keys[kind]}" for kind in KINDS if kind in keys), "")
