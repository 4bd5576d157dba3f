"""Machines behind a stand-in (real ones, or addresses that lead nowhere), and the cloud's own
record of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from providers.local.documents import MachineFacts
from tests.clouds.machines import Machines, nowhere


@dataclass
class Entry:
    """A record of a rented machine: its renter, start and end (0: still running). `instance_id` is
    the adapter's id."""

    instance_id: str
    token: str
    launched_at_us: int
    ended_at_us: int = 0

    def row(self) -> dict[str, Any]:
        """Return it in the format of the local cloud's ledger."""
        end_us = self.ended_at_us or now_us()
        return {
            "instance_id": self.instance_id,
            "token": self.token,
            "launched_at_us": self.launched_at_us,
            "ended_at_us": self.ended_at_us or None,
            "seconds": (end_us - self.launched_at_us) / 1e6,
        }


@dataclass
class Taking:
    """A preemption; the machine's own metadata service published it at `published_at_us`."""

    instance_id: str
    notice_s: float
    published_at_us: int
    mode: str = "notice"
    reclaimed_at_us: int | None = None
    thawed_at_us: int | None = None

    def row(self) -> dict[str, Any]:
        """Return it in the format of the local cloud's notices."""
        return asdict(self)


class Fleet:
    """The machines of one stand-in. `books` are by the machines' own names."""

    def __init__(self, machines: Machines | None = None) -> None:
        self._machines = machines
        self._nowhere = nowhere()
        self._timers: list[threading.Timer] = []
        self.real = machines is not None
        self.books: dict[str, Entry] = {}
        self.takings: list[Taking] = []

    def rent(
        self, facts: MachineFacts, instance_id: str, token: str, user_data: str, **more: Any
    ) -> str:
        """Start a machine and return its address at once. `more` is passed to `Machines.boot`."""
        self.books[facts.instance_id] = Entry(instance_id, token, now_us())
        if self._machines is None:
            return next(self._nowhere)
        return self._machines.boot(facts, user_data, **more)

    def take(self, name: str, end_us: int, gone: Callable[[], None]) -> None:
        """Publish in the machine's metadata that it ends at `end_us`; call `gone` at that time.

        Without real machines, nobody reads the metadata. Must not be called with a lock that `hear`
        of `rent` needs.
        """
        if self._machines is None:
            return
        published_us = self._machines.warn(name, end_us)
        left_s = max((end_us - now_us()) / 1e6, 0.0)
        resource_id = self.books[name].instance_id
        self.takings.append(Taking(resource_id, (end_us - published_us) / 1e6, published_us))
        timer = threading.Timer(left_s, gone)
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def end(self, name: str) -> None:
        """End the machine of that name; an unknown name is ignored."""
        if self._machines is not None:
            self._machines.end(name)
        entry = self.books.get(name)
        if entry is not None and not entry.ended_at_us:
            entry.ended_at_us = now_us()

    def close(self) -> None:
        """Cancel pending preemptions."""
        for timer in self._timers:
            timer.cancel()

    def running(self) -> list[str]:
        """Return the names of running machines."""
        return [name for name, entry in self.books.items() if not entry.ended_at_us]


def now_us() -> int:
    return time.time_ns() // 1000
