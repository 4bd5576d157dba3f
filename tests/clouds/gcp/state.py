"""The state of a project: machines, disks, and operations that take time."""

from __future__ import annotations

import base64
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

Row = dict[str, Any]
Key = tuple[str, str]  # (zone, name)
_PACIFIC = timezone(timedelta(hours=-8))
_numbers = itertools.count(4_000_000_000_000_000_001)


def stamp(at_s: float | None = None) -> str:
    """Format a time as Google does."""
    moment = datetime.fromtimestamp(time.time() if at_s is None else at_s, _PACIFIC)
    return moment.isoformat(timespec="milliseconds")


def number() -> str:
    """Return a number that nothing else has."""
    return str(next(_numbers))


def fingerprint() -> str:
    """Return a new fingerprint."""
    return base64.b64encode(next(_numbers).to_bytes(8, "big")).decode()


@dataclass
class Machine:
    """`row` is the Instance of the API; `ends_s` is when its maxRunDuration is over, `up_s` since
    when it runs."""

    row: Row
    ends_s: float = float("inf")
    up_s: float = float("inf")
    console: str = ""  # what it wrote to its first serial port
    guest: dict[str, str] = field(default_factory=dict)  # guest attributes of hostkeys/


@dataclass
class Work:
    """An operation: at `due_s` its `finish` returns its error, or applies its effect."""

    row: Row
    due_s: float
    finish: Callable[[], tuple[str, int, str] | None]


@dataclass
class Project:
    """`requests` maps request id -> the operation that it started, for ever."""

    name: str
    host: str
    machines: dict[Key, Machine] = field(default_factory=dict)
    disks: dict[Key, Row] = field(default_factory=dict)
    works: dict[str, Work] = field(default_factory=dict)  # by the operation's name
    requests: dict[str, str] = field(default_factory=dict)
    images: dict[str, Row] = field(default_factory=dict)  # by name
    reservations: list[Row] = field(default_factory=list)
    gone: Callable[[Key], None] = lambda _key: None  # hears of machines that are no more

    def link(self, zone: str, collection: str, name: str) -> str:
        """Return the link of a resource in a zone, or of a global one ("")."""
        return f"{self.host}/compute/v1/{self.path(zone, collection, name)}"

    def path(self, zone: str, collection: str, name: str) -> str:
        """Return the path as errors contain it."""
        where = f"zones/{zone}" if zone else "global"
        return f"projects/{self.name}/{where}/{collection}/{name}"

    def begin(
        self,
        kind: str,
        key: Key,
        delay_s: float,
        finish: Callable[[], tuple[str, int, str] | None],
        *,
        collection: str = "instances",
        request_id: str = "",
        user: str = "spotd@lab.iam.gserviceaccount.com",
    ) -> Work:
        """Start an operation on a resource; the zone is "" for a global one."""
        zone, name = key
        resource_id, now = number(), stamp()
        where = f"{self.host}/compute/v1/projects/{self.name}/zones/{zone}"
        row: Row = {
            "kind": "compute#operation",
            "id": resource_id,
            "name": f"operation-{resource_id}",
            "operationType": kind,
            "status": "RUNNING",
            "progress": 0,
            "insertTime": now,
            "startTime": now,
            "user": user,
            **({"zone": where} if zone else {}),
            "targetLink": self.link(zone, collection, name),
        }
        row["selfLink"] = self.link(zone, "operations", row["name"])
        if request_id:
            row["clientOperationId"] = request_id
            self.requests[request_id] = row["name"]
        work = Work(row, time.monotonic() + delay_s, finish)
        self.works[row["name"]] = work
        return work

    def finish_all(self) -> None:
        """Complete all operations at once, and bring machines up."""
        for work in self.works.values():
            work.due_s = 0.0
        self.advance()
        for machine in self.machines.values():
            machine.up_s = 0.0

    def advance(self) -> None:
        """Apply operations that are due."""
        now_s = time.monotonic()
        for work in list(self.works.values()):
            if work.row["status"] != "DONE" and now_s >= work.due_s:
                error = work.finish()
                work.row |= {"status": "DONE", "progress": 100, "endTime": stamp()}
                if error is not None:
                    code, status, message = error
                    work.row["error"] = {"errors": [{"code": code, "message": message}]}
                    work.row |= {"httpErrorStatusCode": status, "httpErrorMessage": "FAILED"}
        for key, machine in list(self.machines.items()):
            if now_s >= machine.ends_s:
                self.remove(key)

    def remove(self, key: Key, *, disk_too: bool = True) -> None:
        """Remove a machine and its disk."""
        self.machines.pop(key, None)
        self.gone(key)
        if disk_too:
            self.disks.pop(key, None)
        else:
            self.let_go(key)

    def let_go(self, key: Key) -> None:
        """Detach a machine's disk."""
        if self.disks.get(key, {}).get("users"):
            self.disks[key] |= {"users": [], "lastDetachTimestamp": stamp()}
