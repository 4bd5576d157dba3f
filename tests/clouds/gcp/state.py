"""What a project of the stand-in has: machines, their disks, operations that take their time."""

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
    """A moment as Google writes it."""
    moment = datetime.fromtimestamp(time.time() if at_s is None else at_s, _PACIFIC)
    return moment.isoformat(timespec="milliseconds")


def number() -> str:
    """A number that nothing else has."""
    return str(next(_numbers))


def fingerprint() -> str:
    """Of what has just changed."""
    return base64.b64encode(next(_numbers).to_bytes(8, "big")).decode()


@dataclass
class Machine:
    """`row` is what Instances tells; `ends_s` when its maxRunDuration is over, `up_s` since when it
    runs."""

    row: Row
    ends_s: float = float("inf")
    up_s: float = float("inf")
    console: str = ""  # what it wrote to its first serial port
    guest: dict[str, str] = field(default_factory=dict)  # guest attributes of hostkeys/


@dataclass
class Work:
    """An operation: at `due_s` its `finish` gives its error, or does what it is for."""

    row: Row
    due_s: float
    finish: Callable[[], tuple[str, int, str] | None]


@dataclass
class Project:
    """`requests` is request id -> the operation that it began, for ever."""

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
        """Of something in a zone, or in none ("")."""
        return f"{self.host}/compute/v1/{self.path(zone, collection, name)}"

    def path(self, zone: str, collection: str, name: str) -> str:
        """The same as errors say it."""
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
        """A new operation on something; its zone is "" for what is in none."""
        zone, name = key
        ident, now = number(), stamp()
        where = f"{self.host}/compute/v1/projects/{self.name}/zones/{zone}"
        row: Row = {
            "kind": "compute#operation",
            "id": ident,
            "name": f"operation-{ident}",
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
        """What goes on is done, however long it was to take, and machines are up."""
        for work in self.works.values():
            work.due_s = 0.0
        self.advance()
        for machine in self.machines.values():
            machine.up_s = 0.0

    def advance(self) -> None:
        """What has come due meanwhile is done."""
        now_s = time.monotonic()
        for work in list(self.works.values()):
            if work.row["status"] != "DONE" and now_s >= work.due_s:
                error = work.finish()
                work.row |= {"status": "DONE", "progress": 100, "endTime": stamp()}
                if error is not None:
                    code, status, words = error
                    work.row["error"] = {"errors": [{"code": code, "message": words}]}
                    work.row |= {"httpErrorStatusCode": status, "httpErrorMessage": "FAILED"}
        for key, machine in list(self.machines.items()):
            if now_s >= machine.ends_s:
                self.remove(key)

    def remove(self, key: Key, *, disk_too: bool = True) -> None:
        """A machine, and its disk with it."""
        self.machines.pop(key, None)
        self.gone(key)
        if disk_too:
            self.disks.pop(key, None)
        else:
            self.let_go(key)

    def let_go(self, key: Key) -> None:
        """A machine's disk hangs on nothing any more."""
        if self.disks.get(key, {}).get("users"):
            self.disks[key] |= {"users": [], "lastDetachTimestamp": stamp()}
