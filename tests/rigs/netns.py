"""Real machines of network namespaces, and what can happen to them: see netns_machine.py.

Needs root and iproute2; without them it is a failure, never a skip. A network's bridge and its
group of processes carry its number, and the bridge's alias says whose it is: what a run that was
killed has left behind, the next one removes.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from providers.local import tree
from spotd.demo.box import Box, BoxError, wait_for
from tests.rigs import cgroups
from tests.rigs.netns_machine import HOME, HOST_KEY, SSHD_CONFIG, SSHD_LOG, port_of
from tests.rigs.processes import below

CHECKOUT = Path(__file__).resolve().parents[2]
NAME = "spnet"
# Set aside for benchmarks of networks (RFC 2544): nobody's address lies in it.
NETWORKS = list(IPv4Network("198.18.0.0/15").subnets(new_prefix=20))
LEFT_BYTES = 48 << 20  # of memory, when it is about to be used up
NOBODY = "02:00:00:00:00:01"  # a link address that no machine has
_LOCK = Path("/run/lock/spotd-netns") if Path("/run/lock").is_dir() else Path("/tmp/spotd-netns")
_PROGRAM = '#!/bin/sh\nexec env PYTHONPATH="{}" "{}" -m tests.rigs.netns_machine "{}" "$@"\n'


def require() -> None:
    """Raises RuntimeError when this computer cannot have such machines."""
    if os.geteuid() != 0:
        raise RuntimeError("machines of network namespaces need root: run this test as root")
    programs = {"ip": "iproute2", "tc": "iproute2", "/usr/sbin/sshd": "openssh-server"}
    for program, package in (programs | {"nsenter": "util-linux"}).items():
        if shutil.which(program) is None:
            raise RuntimeError(f"{program} is missing: apt-get install {package}")


def run(*command: str, check: bool = True) -> str:
    """A command of this computer's. Raises RuntimeError with what it said."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


class Network:
    """A bridge for machines, with this computer as their gateway; one that is `apart` has no way
    to it nor from it."""

    def __init__(self, number: int, *, apart: bool = False) -> None:
        self.apart = apart
        self.bridge = f"{NAME}{number}"
        self.network = NETWORKS[number]
        self.gateway = str(self.network[1])

    def lay(self) -> None:
        """Raises RuntimeError when there is one already."""
        # By itself a bridge takes over the lowest address of its ports: whenever a machine came or
        # went, all others would have a wrong one for their gateway, for seconds.
        address = f"02:53:00:00:00:{int(self.bridge.removeprefix(NAME)):02x}"
        run("ip", "link", "add", self.bridge, "address", address, "type", "bridge")
        me = tree.read_process(os.getpid())
        assert me is not None
        run("ip", "link", "set", self.bridge, "alias", f"{me.pid} {me.started}")
        if self.apart:  # else what is sent there would go wherever this computer sends the rest
            run("ip", "route", "replace", "unreachable", str(self.network))
        else:
            run("ip", "addr", "add", f"{self.gateway}/{self.network.prefixlen}", "dev", self.bridge)
        run("ip", "link", "set", self.bridge, "up")
        self.group = cgroups.make(self.bridge)
        (self.group / "boxes").mkdir()

    def cloud_options(self, folder: Path, shared: Sequence[Path], disk: str) -> list[str]:
        """For a local cloud with machines here; see `write_ground`."""
        self.write_ground(folder / "ground.json", shared, disk)
        program = folder / "machine"
        program.write_text(_PROGRAM.format(CHECKOUT, sys.executable, folder / "ground.json"))
        program.chmod(0o755)
        return ["--machine", str(program), "--network", str(self.network)]

    def write_ground(self, path: Path, shared: Sequence[Path], disk: str) -> None:
        """What programs that are machines here have to know. `shared` lies outside their disks, as
        a bucket does; `disk` is how much each may write."""
        ground = {
            "bridge": self.bridge,
            "gateway": self.gateway,
            "prefix": self.network.prefixlen,
            "group": str(self.group),
            "shared": [str(path) for path in shared],
            "disk": disk,
        }
        path.write_text(json.dumps(ground))

    @contextmanager
    def computer(self) -> Iterator[Machine]:
        """One that is nobody's machine, with the last address: programs are started on it by
        `Machine.within`."""
        host = str(self.network[-2])
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sleep", "inf"]
        )
        mine = Path("/proc/self/ns/net").readlink()
        theirs = Path(f"/proc/{process.pid}/ns/net")
        try:
            wait_for("a network of its own", lambda: theirs.readlink() != mine, 10)
            yield self.plug_in("computer", host, process.pid)
        finally:
            process.kill()
            process.wait()

    def plug_in(self, name: str, host: str, pid: int, card: str = "eth0") -> Machine:
        """A cable from the network that process `pid` is in, with an address for it."""
        found = Machine(self, name, host, pid)
        peer = ["peer", "name", card, "netns", str(pid)]
        run("ip", "link", "add", found.port, "type", "veth", *peer)
        run("ip", "link", "set", found.port, "master", self.bridge, "up")
        for words in (
            f"addr add {host}/{self.network.prefixlen} dev {card}",
            f"link set {card} up",
            "link set lo up",
        ):
            run(*found.within, "ip", *words.split())
        return found

    def keep(self, pid: int) -> None:
        """A process that is to end with this network, should nobody else end it."""
        (self.group / "boxes" / "cgroup.procs").write_text(str(pid))

    def clear(self) -> None:
        """Nothing of it is left: no process, no cable, no group."""
        group = cgroups.top() / self.bridge
        if group.exists():
            cgroups.remove(group)
        for port in Path(f"/sys/class/net/{self.bridge}/brif").glob("*"):
            run("ip", "link", "del", port.name, check=False)  # it may go with its machine
        run("ip", "link", "del", self.bridge)
        run("ip", "route", "del", "unreachable", str(self.network), check=False)

    def owned(self) -> bool:
        """Whether the process that laid it still runs."""
        words = Path(f"/sys/class/net/{self.bridge}/ifalias").read_text().split()
        process = tree.read_process(int(words[0])) if words else None
        return process is not None and process.started == int(words[1])


@contextmanager
def network(*, apart: bool = False) -> Iterator[Network]:
    """One of one's own, for the length of the block."""
    require()
    with _alone():
        laid = _lay(apart)
    try:
        yield laid
    finally:
        with _alone():  # else another's sweep meets half of it
            laid.clear()


@contextmanager
def _alone() -> Iterator[None]:
    """Of all runs on this computer only this one lays or removes networks."""
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _lay(apart: bool) -> Network:
    sweep()
    for number in range(len(NETWORKS)):
        if not Path(f"/sys/class/net/{NAME}{number}").exists():
            laid = Network(number, apart=apart)
            laid.lay()
            return laid
    raise RuntimeError(f"there are {len(NETWORKS)} networks of others: {NAME}0 and so on")


def sweep() -> None:
    """Remove the networks of runs that are gone."""
    for path in Path("/sys/class/net").glob(f"{NAME}*"):
        if path.name[len(NAME) :].isdigit():
            found = Network(int(path.name[len(NAME) :]))
            if not found.owned():
                found.clear()


@dataclass(frozen=True)
class Machine:
    """A machine of the cloud's, from this computer's side; `pid` is its hypervisor's."""

    network: Network
    ident: str
    host: str
    pid: int

    @property
    def init(self) -> int:
        """The first process on it. Raises BoxError when it does not run."""
        for pid in below(self.pid):
            with suppress(OSError):
                rows = Path(f"/proc/{pid}/status").read_text().splitlines()
                ids = next(row for row in rows if row.startswith("NSpid:")).split()[1:]
                if len(ids) > 1 and ids[-1] == "1":
                    return pid
        raise BoxError(f"machine {self.ident} does not run")

    @property
    def within(self) -> list[str]:
        """What starts a program of this computer's on its network."""
        return ["nsenter", "-t", str(self.pid), "-n"]

    @property
    def group(self) -> Path:
        return self.network.group / self.ident

    @property
    def port(self) -> str:
        return port_of(self.network.bridge, self.host)

    def path(self, inside: str) -> Path:
        """A file of its disk."""
        return Path(f"/proc/{self.init}/root{inside}")

    def enter(self, *command: str, check: bool = True) -> str:
        """Run a command on it as root, with its limits."""
        join = f'echo $$ > "{self.group}/cgroup.procs"; exec "$@"'
        root = f"--root=/proc/{self.init}/root"
        inside = ["nsenter", "-t", str(self.init), "-m", "-p", "-n", "-u", root, "--wd=/"]
        return run("sh", "-c", join, "sh", *inside, *command, check=check)

    def up(self) -> bool:
        """Whether it has its cable: from then on things can happen to its link."""
        return Path(f"/sys/class/net/{self.port}/master").exists()

    # --- the network

    def _inside(self, *command: str, check: bool = True) -> None:
        """A command of this computer's on the machine's network."""
        run(*self.within, *command, check=check)

    def cut(self) -> None:
        """Pull the cable: nothing passes in either direction, and nobody is told."""
        run("ip", "link", "set", self.port, "down")

    def mend(self) -> None:
        run("ip", "link", "set", self.port, "up")

    def lose_cable(self) -> None:
        """The half of a power cut that comes first: no last word gets out."""
        run("ip", "link", "del", self.port)

    def swallow(self, what: str) -> None:
        """A path that swallows packets, `to` the machine or `from` it: they go to nobody."""
        lost = ["lladdr", NOBODY, "nud", "permanent"]
        if what == "to":
            run("ip", "neigh", "replace", self.host, *lost, "dev", self.network.bridge)
        else:
            self._inside("ip", "neigh", "replace", self.network.gateway, *lost, "dev", "eth0")

    def deliver(self) -> None:
        """Packets go both ways again."""
        run("ip", "neigh", "del", self.host, "dev", self.network.bridge, check=False)
        self._inside("ip", "neigh", "del", self.network.gateway, "dev", "eth0", check=False)

    def slow(self, kbit: int) -> None:
        """A slow link, both ways: by a bucket of tokens, for not every kernel has netem."""
        shape = ["root", "tbf", "rate", f"{kbit}kbit", "burst", "3000", "latency", "3s"]
        run("tc", "qdisc", "replace", "dev", self.port, *shape)
        self._inside("tc", "qdisc", "replace", "dev", "eth0", *shape)

    def quicken(self) -> None:
        run("tc", "qdisc", "del", "dev", self.port, "root", check=False)
        self._inside("tc", "qdisc", "del", "dev", "eth0", "root", check=False)

    def held_back(self) -> int:
        """How often a slow link had a packet wait."""
        said = run("tc", "-s", "-j", "qdisc", "show", "dev", self.port)
        return sum(int(row.get("overlimits", 0)) for row in json.loads(said))

    # --- SSH

    def stop_sshd(self) -> None:
        """Who connects is refused; sessions that there are go on."""
        self.enter("sh", "-c", "kill $(cat /run/sshd/pid)")
        wait_for("sshd to end", lambda: not self.path("/run/sshd/pid").exists(), 10)

    def start_sshd(self) -> None:
        self.enter("/usr/sbin/sshd", "-f", SSHD_CONFIG, "-E", SSHD_LOG)

    def hang_up(self) -> None:
        """End every session of sshd's."""
        self.enter("pkill", "-9", "-f", "^sshd: [^/]", check=False)

    def logins(self) -> int:
        """How often somebody was let in."""
        return self.path(SSHD_LOG).read_text().count("Accepted publickey")

    def change_host_key(self) -> None:
        """Another one has the address: the same machine with another key."""
        key = self.path(HOST_KEY)
        key.unlink()
        self.enter("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", HOST_KEY)

    # --- what it has

    def fill_disk(self) -> None:
        """Until there is no room for a byte."""
        self.enter("sh", "-c", f"cat /dev/zero > {HOME}/full 2>/dev/null", check=False)

    def free_disk(self) -> None:
        self.path(f"{HOME}/full").unlink()

    def use_up_memory(self, victim: int) -> None:
        """Somebody else on the machine takes more than there is left; the kernel kills `victim`, a
        process id of this computer's, for it."""
        Path(f"/proc/{victim}/oom_score_adj").write_text("1000")
        cgroups.limit_bytes(self.group, cgroups.used_bytes(self.group) + LEFT_BYTES)
        eat = f"import time; kept = bytearray(b'x') * {2 * LEFT_BYTES}; time.sleep(1000)"
        self.enter("sh", "-c", f'{sys.executable} -c "{eat}" >/dev/null 2>&1 &')


class RealBox(Box):
    """A box whose machines are of namespaces. `disk` is the size of each one's. With `bucket`, they
    reach their checkpoints by the network; else in a folder that is there whatever happens."""

    def __init__(
        self,
        network: Network,
        *arguments: Any,
        disk: str = "512m",
        **more: Any,
    ) -> None:
        super().__init__(*arguments, **more)
        self.network = network
        (self.folder / "checkpoints").mkdir(exist_ok=True)
        shared = [self.folder / "checkpoints"]
        self.cloud_options = network.cloud_options(self.folder, shared, disk)

    def _spawn(self, *arguments: Any, **more: Any) -> subprocess.Popen[bytes]:
        process = super()._spawn(*arguments, **more)
        self.network.keep(process.pid)
        return process

    def machine(self, instance_id: str) -> Machine:
        """Raises BoxError when it was never there."""
        return machine_of(self, self.network, instance_id)


def machine_of(cloud: Box, network: Network, instance_id: str) -> Machine:
    """One of the cloud's machines. Raises BoxError when it was never there."""
    for row in cloud.ask_cloud("/control/state")["instances"]:
        if row["instance_id"] == instance_id:
            return Machine(network, instance_id, row["host"], int(row["pid"]))
    raise BoxError(f"there is no machine {instance_id}")
