"""What stands behind the instances of the stand-in: machines, or addresses that lead nowhere."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from providers.local.documents import Facts
from tests.clouds.machines import Machines, nowhere


@dataclass
class Entry:
    """One line of the cloud's own books: whom it sold what, from when until when (0: it runs)."""

    region: str
    instance: str
    token: str
    launched_at_us: int
    ended_at_us: int = 0


class Fleet:
    """`off` hears of an instance that somebody on it has switched off."""

    def __init__(self, machines: Machines | None, off: Callable[[str], None]) -> None:
        self._machines = machines
        self._off = off
        self._nowhere = nowhere()
        self.books: dict[str, Entry] = {}

    def launch(self, region: str, instance: Any, user_data: str, reply: bytes) -> bytes:
        """Put a machine behind an instance of moto's. Returns `reply` with its address."""
        name = instance.id
        sold_at_us, address = _now_us(), next(self._nowhere)
        if self._machines is not None:
            zone, kind = instance.availability_zone, instance.instance_type
            spot = instance.lifecycle == "spot"
            facts = Facts(name, "aws", name, region, zone, kind, spot)
            text = base64.b64decode(user_data).decode()
            address = self._machines.boot(facts, text, off=lambda: self._off(name))
        self.books[name] = Entry(region, name, instance.client_token, sold_at_us)
        card = instance.nics[0]
        for invented in filter(None, (card.private_ip_address, card.public_ip)):
            for dots in (".", "-"):  # as an address, and in a host name
                old, new = (text.replace(".", dots) for text in (invented, address))
                reply = reply.replace(old.encode(), new.encode())
        inner = f"ip-{address.replace('.', '-')}.ec2.internal"
        card.private_ip_address, card.private_dns_name = address, inner
        card.private_ip_addresses = [
            {"Primary": True, "PrivateIpAddress": address, "PrivateDnsName": inner}
        ]
        card.public_ip = address if card.public_ip else None
        return reply

    def warn(self, name: str, end: datetime, take: Callable[[], None]) -> None:
        """A real machine hears of its end, and meets it."""
        if self._machines is None:
            return
        self._machines.warn(name, int(end.timestamp() * 1e6))
        left_s = max((end - datetime.now(UTC)).total_seconds(), 0.0)
        timer = threading.Timer(left_s, take)
        timer.daemon = True
        timer.start()

    def end(self, name: str) -> None:
        """No instance of that name is left; one that nobody has is none."""
        if self._machines is not None:
            self._machines.end(name)
        entry = self.books.get(name)
        if entry is not None and not entry.ended_at_us:
            entry.ended_at_us = _now_us()


def _now_us() -> int:
    return time.time_ns() // 1000
