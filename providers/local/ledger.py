"""The cloud's own append-only record of launches and ends of machines.

Tests use it as independent evidence against leaked machines, so it knows nothing about spotd. It
also records when the server was last alive: machines of a killed server ended at that time.
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
    """A launched machine, without private keys. `digest` is the hash of the launch request."""

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
        """Parse a ledger row. Raises TypeError or ValueError if another version wrote it."""
        row = dict(data)
        return cls(**{**row, "capacity_type": CapacityType(row["capacity_type"])})  # type: ignore[arg-type]


@dataclass(frozen=True)
class MachineEnd:
    """When and why a machine ended. `error_code` is set if the launch itself failed."""

    instance_id: str
    ended_at_us: int
    reason: str
    error: str = ""
    error_code: str = ""


@dataclass
class LedgerContents:
    """The launches and ends in a ledger file, by instance id."""

    launches: dict[str, Launch] = field(default_factory=dict)
    ends: dict[str, MachineEnd] = field(default_factory=dict)


class Ledger:
    """Writes `folder`/ledger.jsonl and `folder`/alive. Writes are unbuffered."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "ledger.jsonl"
        self._alive = folder / "alive"
        self._lock = threading.Lock()
        self.contents = self._read()
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._close_open_machines()
        self.heartbeat()

    def launch(self, launch: Launch) -> None:
        """Record a launch: billing starts."""
        self._write({"launch": asdict(launch)})

    def end(self, end: MachineEnd) -> None:
        """Record an end: billing stops. Only the first end of a machine counts."""
        self._write({"end": asdict(end)})

    def heartbeat(self) -> None:
        """Record that the server is alive."""
        self._alive.touch(mode=0o600)

    def close(self) -> None:
        """Record the last heartbeat and close the file."""
        self.heartbeat()
        os.close(self._file)

    def _write(self, row: dict[str, object]) -> None:
        with self._lock:
            os.write(self._file, (json.dumps(row) + "\n").encode())

    def _read(self) -> LedgerContents:
        contents = LedgerContents()
        if not self._path.exists():
            return contents
        data = self._path.read_bytes()
        complete = data.rfind(b"\n") + 1
        if complete < len(data):  # the server died in the middle of a line
            os.truncate(self._path, complete)
        for line in data[:complete].splitlines():
            match json.loads(line):
                case {"launch": dict(row)}:
                    launch = Launch.from_data(row)
                    contents.launches[launch.instance_id] = launch
                case {"end": dict(row)}:
                    end = MachineEnd(**row)
                    contents.ends.setdefault(end.instance_id, end)
        return contents

    def _close_open_machines(self) -> None:
        """Machines end with their server, so close those left open at its last heartbeat."""
        last_alive_us = self._alive.stat().st_mtime_ns // 1000 if self._alive.exists() else 0
        for ident, launch in self.contents.launches.items():
            if ident not in self.contents.ends:
                at_us = max(last_alive_us, launch.launched_at_us)
                end = MachineEnd(ident, at_us, "server_gone", "the local cloud was stopped")
                self.contents.ends[ident] = end
                self.end(end)
