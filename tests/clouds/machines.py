"""Real machines for cloud stand-ins: network namespaces with a disk, OpenSSH and a metadata
service, which boot by the user data of the API request.

For any cloud: a stand-in gets `machines=None` or these, and calls

* on create, `boot(facts, user_data)`, which returns the address for its listings; the machine boots
  in the background. `facts.personality` ("aws", "gcp", "azure") selects the format of its metadata
  service and of its first boot (guest.py of each cloud), `facts.instance_id` is its name here.
  `accounts` (user -> public key) are those requested outside the user data, in GCP's metadata or
  Azure's osProfile. `off` is called when the machine is powered off from inside, `hear` with
  everything that is sent to its metadata service: published host keys, the ready report, approval
  of an event;
* on delete, `end(name)`; on an interruption `warn(name, ...)` and, when its time is over, `end`.

Without machines a stand-in uses addresses of `nowhere()`, so that nothing ever calls a stranger.
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
    """Yield addresses that lead nowhere: TEST-NET-1 (RFC 5737)."""
    return cycle(f"192.0.2.{number}" for number in range(1, 255))


def require() -> None:
    """Raises RuntimeError when this computer cannot run such machines."""
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
    """Machines on one network.

    `readable` are files of this computer that every process on a machine can read, namely the job's
    Python. `disk` limits how much each may write. `next_programs` (path -> shell script) are put on
    the disk of the next machine that boots. Thread-safe.
    """

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
        """Start a machine and return its address at once. `attributes` are those of GCP's
        metadata."""
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
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        process = self._start(config, other, log)

        def listen(event: Mapping[str, object]) -> None:
            if event.get("event") == "powered_off":
                self.end(name)
                off()
            hear(event)

        body = MachineProcess(name, process.pid, own, [disk], listen)
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
        result = os.memfd_create("machine")
        try:
            os.write(result, json.dumps(config).encode())
            os.lseek(result, 0, os.SEEK_SET)
            yield result
        finally:
            os.close(result)

    def warn(
        self,
        name: str,
        deadline_us: int,
        kind: NoticeKind = NoticeKind.PREEMPT,
        notice_id: str = "taken-away",
    ) -> int:
        """Publish a notice in the machine's metadata; return the time (us).

        Raises NurseryError when the machine is gone, and returns only after `hear` has.
        """
        body = {"notice_id": notice_id, "kind": kind.value, "deadline_us": deadline_us}
        return int(str(self._find(name).body.request({"publish": body}, "published")["at_us"]))

    def withdraw(self, name: str, notice_id: str = "taken-away") -> None:
        """Remove a notice from the machine's metadata."""
        self._find(name).body.request({"withdraw": notice_id}, "withdrawn")

    def cut_power(self, name: str) -> None:
        """Stop the machine instantly, without the cloud noticing: connections are not closed."""
        self._find(name).machine.lose_cable()
        self.end(name)

    def end(self, name: str) -> None:
        """End the machine completely; an unknown one has ended already."""
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
        """Return the names of running machines, oldest first."""
        with self._lock:
            return list(self._rented)

    def machine(self, name: str) -> Machine:
        """Return the machine, for inspection and fault injection. Raises BoxError when it is
        gone."""
        return self._find(name).machine

    def host_key(self, name: str) -> str:
        """Return the public host key of its SSH server, or "" before there is one."""
        with suppress(OSError, BoxError):
            return self.machine(name).path(f"{HOST_KEY}.pub").read_text().strip()
        return ""

    def said(self, name: str) -> str:
        """Return the output of its boot so far, for diagnosing a failed boot."""
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
    """Run machines for the duration of the block."""
    made = Machines(network, folder, **more)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.end_all()
