"""Machines for stand-ins of clouds: what an API was asked for becomes a network namespace with a
disk, OpenSSH and a metadata service of its own, and comes up by the user data that the API got.

For any cloud: a stand-in is made with `machines=None` or with these, and

* on create, `boot(facts, user_data)` returns the address that its listings show from then on; the
  machine comes up meanwhile, as machines do. `facts.personality` ("aws", "gcp", "azure") is the
  dialect of its metadata service and of its first boot (guest.py of each cloud),
  `facts.instance_id` its name here. `accounts` (user -> public key) are those that were asked for
  beside the user data, in GCP's metadata or Azure's osProfile. `off` is called when somebody on the
  machine switches it off, `hear` with whatever its metadata service is told: the host keys that it
  publishes, that it is ready, that it agrees to an event;
* on delete, `end(name)`; on an interruption `warn(name, ...)` and, when its time is over, `end`.

Without machines a stand-in shows addresses of `nowhere()`, so that nothing ever calls a stranger.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

from providers.base import NoticeKind
from providers.local.documents import MachineFacts
from providers.local.process_pool import MachineProcess
from spotd.demo.box import BoxError, wait_for
from tests.clouds.machines_boot import BOOT_LOG, HOST_KEY
from tests.fixtures import cgroups
from tests.fixtures.netns import CHECKOUT, Machine, Network, run

END_S = 10.0


def nowhere() -> Iterator[str]:
    """Addresses that lead to nobody: TEST-NET-1 (RFC 5737)."""
    return cycle(f"192.0.2.{number}" for number in range(1, 255))


def require() -> None:
    """Raises RuntimeError when this computer cannot have such machines."""
    for program in ("cloud-init", "sudo"):
        if not any((Path(folder) / program).exists() for folder in ("/usr/bin", "/bin")):
            raise RuntimeError(f"{program} is missing: apt-get install {program}")


@dataclass
class _Rented:
    machine: Machine
    body: MachineProcess
    process: subprocess.Popen[bytes]
    log: Path
    ending: threading.Lock = field(default_factory=threading.Lock)


class Machines:
    """On one network. `readable` is what everybody on a machine can read, of this computer's files:
    the Python of the job, that is. `disk` is how much each may write. `next_programs` (path ->
    shell script) are on the disk of the next one that boots. Thread-safe."""

    def __init__(
        self, network: Network, folder: Path, *, readable: Sequence[Path] = (), disk: str = "512m"
    ) -> None:
        require()
        folder.mkdir(parents=True, exist_ok=True)
        self._network = network
        self._folder = folder
        self._readable = [str(path.absolute()) for path in readable]
        self._lock = threading.Lock()
        self._made = 0
        self.next_programs: dict[str, str] = {}
        self._rented: dict[str, _Rented] = {}
        network.write_ground(folder / "ground.json", [], disk)

    def boot(
        self,
        facts: MachineFacts,
        user_data: str,
        *,
        accounts: Mapping[str, str] | None = None,
        attributes: Mapping[str, str] | None = None,
        off: Callable[[], None] = lambda: None,
        hear: Callable[[Mapping[str, object]], None] = lambda _event: None,
        delay_s: float = 0.0,
    ) -> str:
        """Start a machine; its address, at once. `attributes` are those of GCP's metadata."""
        name = facts.instance_id
        disk, log = self._folder / name, self._folder / f"{name}.log"
        disk.mkdir(mode=0o700)
        with self._lock:
            self._made += 1
            host = str(self._network.network[1 + self._made])
            programs, self.next_programs = self.next_programs, {}
        config = {
            "id": name,
            "host": host,
            "home": str(disk),
            "boot_delay_s": delay_s,
            "facts": facts.to_data(),
            "user_data": user_data,
            "accounts": dict(accounts or {}),
            "attributes": dict(attributes or {}),
            "readable": self._readable,
            "programs": programs,
        }
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        process = self._start(config, theirs, log)

        def listen(event: Mapping[str, object]) -> None:
            if event.get("event") == "powered_off":
                self.end(name)
                off()
            hear(event)

        body = MachineProcess(name, process.pid, ours, [disk], listen)
        machine = Machine(self._network, name, host, process.pid)
        with self._lock:
            self._rented[name] = _Rented(machine, body, process, log)
        return host

    def _start(
        self, config: Mapping[str, object], control: socket.socket, log: Path
    ) -> subprocess.Popen[bytes]:
        program = [sys.executable, "-m", "tests.clouds.machines_boot"]
        with control, log.open("wb") as output, self._stdin(config) as stdin:
            return subprocess.Popen(
                [*program, str(self._folder / "ground.json"), str(control.fileno())],
                stdin=stdin,
                stdout=output,
                stderr=output,
                pass_fds=[control.fileno()],
                cwd=CHECKOUT,
                start_new_session=True,
            )

    @staticmethod
    @contextmanager
    def _stdin(config: Mapping[str, object]) -> Iterator[int]:
        found = os.memfd_create("machine")
        try:
            os.write(found, json.dumps(config).encode())
            os.lseek(found, 0, os.SEEK_SET)
            yield found
        finally:
            os.close(found)

    def warn(
        self,
        name: str,
        deadline_us: int,
        kind: NoticeKind = NoticeKind.PREEMPT,
        notice_id: str = "taken-away",
    ) -> int:
        """Its metadata service tells of it from now on, which is returned (us). Raises NurseryError
        when it is gone, and does not answer while `hear` has not come back."""
        body = {"notice_id": notice_id, "kind": kind.value, "deadline_us": deadline_us}
        return int(str(self._find(name).body.ask({"publish": body}, "published")["at_us"]))

    def withdraw(self, name: str, notice_id: str = "taken-away") -> None:
        """Its metadata service tells of it no more."""
        self._find(name).body.ask({"withdraw": notice_id}, "withdrawn")

    def cut_power(self, name: str) -> None:
        """It is gone from one moment to the next, and its cloud does not know: no connection is
        told of it."""
        self._find(name).machine.lose_cable()
        self.end(name)

    def end(self, name: str) -> None:
        """When this returns nothing of it is left; one that is unknown has ended."""
        with self._lock:
            rented = self._rented.get(name)
        if rented is None:
            return
        with rented.ending:
            if name not in self._rented:
                return
            self._end(rented)
            with self._lock:
                del self._rented[name]

    def _end(self, rented: _Rented) -> None:
        port = Path(f"/sys/class/net/{rented.machine.port}")
        rented.body.kill()
        rented.process.wait()
        group = rented.machine.group
        if group.exists():
            cgroups.remove(group)
        # The kernel takes the cable away some time after its namespace.
        run("ip", "link", "del", port.name, check=False)
        wait_for(f"{port.name} to be gone", lambda: not port.exists(), END_S)

    def end_all(self) -> None:
        for name in self.running():
            self.end(name)

    def running(self) -> list[str]:
        """The names of those that have not ended, the oldest first."""
        with self._lock:
            return list(self._rented)

    def machine(self, name: str) -> Machine:
        """To look into it, and to hurt it. Raises BoxError when it is gone."""
        return self._find(name).machine

    def host_key(self, name: str) -> str:
        """The public key that its SSH server has, or "" until it has one."""
        with suppress(OSError, BoxError):
            return self.machine(name).path(f"{HOST_KEY}.pub").read_text().strip()
        return ""

    def said(self, name: str) -> str:
        """What came out of its boot so far, for whoever has to find out why it did not come up."""
        rented = self._find(name)
        with suppress(OSError, BoxError):
            return rented.log.read_text() + rented.machine.path(BOOT_LOG).read_text()
        return rented.log.read_text()

    def _find(self, name: str) -> _Rented:
        with self._lock:
            rented = self._rented.get(name)
        if rented is None:
            raise BoxError(f"there is no machine {name}")
        return rented


@contextmanager
def machines_on(network: Network, folder: Path, **more: object) -> Iterator[Machines]:
    """For the length of the block; nothing is left behind."""
    made = Machines(network, folder, **more)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.end_all()
