"""The host keys of machines, which their guest agent publishes at first boot."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from providers.base import ProviderError
from providers.gcp.clients import Clients
from providers.gcp.codes import nobodys
from providers.gcp.names import last
from providers.gcp.operations import us_of

log = logging.getLogger(__name__)

ANSWER_S = 3.0
# A machine that has published none by then has none to publish; it is asked once more after a
# restart of ours.
BOOTED_S = 1800.0
KINDS = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ssh-rsa")  # the one to pin first


class HostKeys:
    """Asked for once a machine, until it is known; nothing else is asked of a single machine."""

    def __init__(self, clients: Clients, wall_s: Callable[[], float] = time.time) -> None:
        self._clients = clients
        self._wall_s = wall_s
        self._lock = threading.Lock()
        self._known: dict[int, str] = {}  # by the machine's own number; "" asked in vain
        self._complained = False

    def of(self, machines: Iterable[Any]) -> dict[int, str]:
        """By number. Of those that are not up yet, or that published none yet, "". That it cannot
        be asked for takes nothing from the listing: it is asked for again with the next."""
        machines = list(machines)
        with self._lock:
            numbers = {machine.id for machine in machines}
            self._known = {n: key for n, key in self._known.items() if n in numbers}
            asked = [m for m in machines if m.status == "RUNNING" and self._wanted(m)]
        found = dict(self._clients.side_by_side(asked, self._ask))
        with self._lock:
            self._known |= found
            return dict(self._known)

    def _wanted(self, machine: Any) -> bool:
        known = self._known.get(machine.id)
        age_s = self._wall_s() - us_of(machine.creation_timestamp) / 1e6
        return known is None or (not known and age_s < BOOTED_S)

    def _ask(self, machine: Any) -> tuple[int, str]:
        try:
            answer = self._clients.call(
                "Instances",
                "get_guest_attributes",
                timeout_s=ANSWER_S,
                zone=last(machine.zone),
                instance=machine.name,
                query_path="hostkeys/",
            )
        except ProviderError as error:
            if not nobodys(error) and not self._complained:
                self._complained = True
                log.warning("the host keys of machines cannot be asked for: %s", error)
            return machine.id, ""
        return machine.id, read_host_key(answer)


def read_host_key(answer: Any) -> str:
    """The key to pin, as in known_hosts ("ssh-ed25519 AAAA…"); "" when there is none."""
    found = {item.key: item.value for item in answer.query_value.items if item.value}
    return next((f"{kind} {found[kind]}" for kind in KINDS if kind in found), "")
