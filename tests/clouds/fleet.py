"""What stands behind the machines that a stand-in sells: real ones, or addresses that lead nowhere;
and what the cloud itself writes down of them."""

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
    """One line of the books: whom it sold what, from when until when (0: it runs). `instance_id` is
    what the adapter calls it."""

    instance_id: str
    token: str
    launched_at_us: int
    ended_at_us: int = 0

    def row(self) -> dict[str, Any]:
        """As the local cloud's meter tells it."""
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
    """A machine that is taken back: its own metadata service said so at `published_at_us`."""

    instance_id: str
    notice_s: float
    published_at_us: int
    mode: str = "notice"
    reclaimed_at_us: int | None = None
    thawed_at_us: int | None = None

    def row(self) -> dict[str, Any]:
        """As the local cloud's notices tell it."""
        return asdict(self)


class Fleet:
    """Of one stand-in. `books` are by the machines' own names."""

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
        """Sell a machine; its address, at once. `more` is for `Machines.boot`."""
        self.books[facts.instance_id] = Entry(instance_id, token, now_us())
        if self._machines is None:
            return next(self._nowhere)
        return self._machines.boot(facts, user_data, **more)

    def take(self, name: str, end_us: int, gone: Callable[[], None]) -> None:
        """Its metadata service says that it ends at `end_us`; then `gone` is called. Without real
        machines there is nobody to hear of it. Not under a lock that `hear` of `rent` needs."""
        if self._machines is None:
            return
        published_us = self._machines.warn(name, end_us)
        left_s = max((end_us - now_us()) / 1e6, 0.0)
        ident = self.books[name].instance_id
        self.takings.append(Taking(ident, (end_us - published_us) / 1e6, published_us))
        timer = threading.Timer(left_s, gone)
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def end(self, name: str) -> None:
        """No machine of that name is left; one that nobody has is none."""
        if self._machines is not None:
            self._machines.end(name)
        entry = self.books.get(name)
        if entry is not None and not entry.ended_at_us:
            entry.ended_at_us = now_us()

    def close(self) -> None:
        """Nothing is taken any more."""
        for timer in self._timers:
            timer.cancel()

    def running(self) -> list[str]:
        """The names of those that are sold and not ended."""
        return [name for name, entry in self.books.items() if not entry.ended_at_us]


def now_us() -> int:
    return time.time_ns() // 1000
