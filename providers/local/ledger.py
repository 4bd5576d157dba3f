"""The cloud's own record of who had which machine for how long: an append-only file.

It is the independent witness against leaks, so it knows nothing of spotd: launches, ends, and the
last moment at which the server was alive, by which machines are closed whose server was killed.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from providers.base import CapacityType


@dataclass(frozen=True)
class Launch:
    """One machine as it was asked for; no private keys. `digest` is of the whole request."""

    instance_id: str
    token: str
    digest: str
    personality: str
    region: str
    zone: str
    instance_type: str
    capacity_type: CapacityType
    name: str
    tags: Mapping[str, str]
    ssh_user: str
    host_public_key: str
    host: str
    ssh_port: int
    launched_at_us: int

    @classmethod
    def from_data(cls, data: Mapping[str, object]) -> Launch:
        """Back from JSON. Raises TypeError or ValueError when the file is of another version."""
        row = dict(data)
        return cls(**{**row, "capacity_type": CapacityType(row["capacity_type"])})  # type: ignore[arg-type]


@dataclass(frozen=True)
class MachineEnd:
    """How and when a machine ended; `error_code` for a create that failed after all."""

    instance_id: str
    ended_at_us: int
    reason: str
    error: str = ""
    error_code: str = ""


@dataclass
class LedgerContents:
    """What a ledger file says."""

    launches: dict[str, Launch] = field(default_factory=dict)
    ends: dict[str, MachineEnd] = field(default_factory=dict)


class Ledger:
    """`folder`/ledger.jsonl and `folder`/alive. Writes reach the kernel before they return."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "ledger.jsonl"
        self._alive = folder / "alive"
        self._lock = threading.Lock()
        self.books = self._read()
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._close_open_machines()
        self.beat()

    def launch(self, launch: Launch) -> None:
        """A machine begins to cost."""
        self._write({"launch": asdict(launch)})

    def end(self, end: MachineEnd) -> None:
        """It costs no more. Only the first end of a machine counts."""
        self._write({"end": asdict(end)})

    def beat(self) -> None:
        """The server is alive now."""
        self._alive.touch(mode=0o600)

    def close(self) -> None:
        """Write no more."""
        self.beat()
        os.close(self._file)

    def _write(self, row: dict[str, object]) -> None:
        with self._lock:
            os.write(self._file, (json.dumps(row) + "\n").encode())

    def _read(self) -> LedgerContents:
        books = LedgerContents()
        if not self._path.exists():
            return books
        data = self._path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):  # the server died in the middle of a line
            os.truncate(self._path, whole)
        for line in data[:whole].splitlines():
            match json.loads(line):
                case {"launch": dict(row)}:
                    launch = Launch.from_data(row)
                    books.launches[launch.instance_id] = launch
                case {"end": dict(row)}:
                    end = MachineEnd(**row)
                    books.ends.setdefault(end.instance_id, end)
        return books

    def _close_open_machines(self) -> None:
        """Machines die with their server: they ended when it was last seen alive."""
        seen_us = self._alive.stat().st_mtime_ns // 1000 if self._alive.exists() else 0
        for ident, launch in self.books.launches.items():
            if ident not in self.books.ends:
                at_us = max(seen_us, launch.launched_at_us)
                end = MachineEnd(ident, at_us, "server_gone", "the local cloud was stopped")
                self.books.ends[ident] = end
                self.end(end)
