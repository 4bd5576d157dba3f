"""A private network, and a jump host with a foot in it: OpenSSH's own server, nothing else.

This computer has no way to the private network: no address in it, and a route that says so.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from spotd.act.jump import JumpHost
from spotd.act.ssh import Address
from spotd.demo.box import wait_for
from spotd.vault import JobKeys, KeyPair, host_key
from tests.rigs import netns
from tests.rigs.netns import Machine, Network
from tests.rigs.processes import below
from tests.rigs.sshd import TOKEN, keys
from tests.rigs.station import kill

_CONFIG = """\
Port 22
HostKey {folder}/host_key
PidFile none
AuthorizedKeysFile {folder}/authorized_keys
StrictModes no
UsePAM no
UseDNS no
PasswordAuthentication no
PermitRootLogin prohibit-password
MaxStartups 100:30:200
{more}
"""
_START = """
set -eu
mount --bind "$1/home" /root
mount -t tmpfs -o mode=1777 shm /dev/shm  # an agent's memory is found by its folder's name
mkdir -p /run/sshd
exec /usr/sbin/sshd -D -f "$1/sshd_config" -E "$1/log"
"""
NET = 0x40000000  # CLONE_NEWNET


class Server:
    """A computer with sshd, which lets root in with the key of `keys`. `pid` has its network."""

    def __init__(self, folder: Path, pid: int, keys: JobKeys) -> None:
        self.folder = folder
        self.keys = keys
        self._pid = pid
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "home").mkdir(parents=True)
        (folder / "authorized_keys").write_text(f"{keys.user.public}\n")
        self.set_host_key(host_key(keys, TOKEN))
        self.configure()

    @property
    def host_key(self) -> KeyPair:
        return host_key(self.keys, TOKEN)

    def configure(self, more: str = "") -> None:
        """From the next start on, with these lines as well."""
        text = _CONFIG.format(folder=self.folder, more=more)
        (self.folder / "sshd_config").write_text(text)

    def set_host_key(self, key: KeyPair) -> None:
        """From the next start on."""
        path = self.folder / "host_key"
        path.unlink(missing_ok=True)
        path.touch(0o600)
        path.write_text(key.private)

    def start(self) -> None:
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "nsenter", "-t", str(self._pid), "-n",
             "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
             "sh", "-c", _START, "sh", str(self.folder)],
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        wait_for("sshd to listen", self._listens, 10, every_s=0.02)

    def _listens(self) -> bool:
        # "0.0.0.0:22" in state LISTEN, as its network's own kernel says
        rows = Path(f"/proc/{self._pid}/net/tcp").read_text().splitlines()[1:]
        return any(row.split()[1:4:2] == ["00000000:0016", "0A"] for row in rows)

    def stop(self) -> None:
        """Everything on it ends at once; its address stays."""
        process, self._process = self._process, None
        if process is not None:
            self._signal(process.pid, signal.SIGCONT)
            for pid in below(process.pid):
                kill(pid)
            process.kill()
            process.wait()
            wait_for("sshd to end", lambda: not self._listens(), 10, every_s=0.01)

    def restart(self) -> None:
        self.stop()
        self.start()

    def freeze(self) -> None:
        """As a hung guest: its kernel still answers, nothing on it does."""
        assert self._process is not None
        self._signal(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._signal(self._process.pid, signal.SIGCONT)

    @staticmethod
    def _signal(root: int, number: signal.Signals) -> None:
        for pid in below(root):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def said(self) -> str:
        return (self.folder / "log").read_text()

    def log_ins(self) -> int:
        return self.said().count("Accepted publickey")


@dataclass
class Jump:
    """The jump host: its `cable` leads to this computer's side, `private` is behind it."""

    server: Server
    cable: Machine
    private: Network

    @property
    def host(self) -> JumpHost:
        public = self.server.host_key.public
        return JumpHost(Address(self.cable.host, 22, "root", public), self.server.keys.user.private)

    def section(self, folder: Path) -> dict[str, str]:
        """What the section of a provider behind it says; our key goes into `folder`."""
        key = folder / "jump-key"
        key.touch(0o600)
        key.write_text(self.host.private_key)
        return {
            "network": "jump",
            "jump": f"root@{self.cable.host}",
            "jump_host_key": self.host.address.host_public_key,
            "jump_key_file": str(key),
        }


@contextmanager
def jump_host(network: Network, folder: Path) -> Iterator[Jump]:
    """One on `network`, and a private network behind it, for the length of the block."""
    with netns.network(apart=True) as private, computer() as pid:
        cable = network.plug_in("jump", str(network.network[-3]), pid)
        private.plug_in("jump", str(private.network[-3]), pid, "eth1")
        # Its kernel forwards no packet, sshd alone does.
        inside = ["nsenter", "-t", str(pid), "-n"]
        netns.run(*inside, "sh", "-c", "echo 0 > /proc/sys/net/ipv4/ip_forward")
        server = Server(folder, pid, keys(7))
        # As docs/networks.md says.
        allowed = f"restrict,port-forwarding {server.keys.user.public}\n"
        (folder / "authorized_keys").write_text(allowed)
        server.start()
        try:
            yield Jump(server, cable, private)
        finally:
            server.stop()


@contextmanager
def computer() -> Iterator[int]:
    """A process on a network of its own, without a cable."""
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sleep", "inf"]
    )
    mine, theirs = Path("/proc/self/ns/net").readlink(), Path(f"/proc/{process.pid}/ns/net")
    try:
        wait_for("a network of its own", lambda: theirs.readlink() != mine, 10, every_s=0.01)
        yield process.pid
    finally:
        process.kill()
        process.wait()


@contextmanager
def private_server(jump: Jump, folder: Path, job: JobKeys | None = None) -> Iterator[Server]:
    """A machine with sshd behind the jump host, at the first address of its network."""
    with computer() as pid:
        jump.private.plug_in("node", str(jump.private.network[2]), pid)
        server = Server(folder, pid, job or keys())
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def endpoint(jump: Jump, network: Network, port: int) -> Iterator[None]:
    """What a cloud calls a private endpoint: machines of the private network reach `port` at the
    address that this computer has on `network`, and nothing else of it. They have it as their
    gateway, so nothing is to be told to them."""
    with ExitStack() as stack:
        pid = stack.enter_context(computer())
        found = jump.private.plug_in("endpoint", jump.private.gateway, pid)
        netns.run(*found.within, "ip", "addr", "add", f"{network.gateway}/32", "dev", "lo")
        server = stack.enter_context(_listening(pid, network.gateway, port))
        relay = threading.Thread(target=_relay, args=(server, (network.gateway, port)))
        relay.start()
        try:
            yield
        finally:
            server.shutdown(socket.SHUT_RDWR)  # it waits for the next, else for ever
            relay.join()


@contextmanager
def _listening(pid: int, host: str, port: int) -> Iterator[socket.socket]:
    """A server on the network of another process."""
    made: list[socket.socket] = []

    def make() -> None:
        with Path(f"/proc/{pid}/ns/net").open() as theirs:
            _set_namespace(theirs.fileno())
        made.append(socket.create_server((host, port)))

    thread = threading.Thread(target=make)  # it stays in that network, and ends there
    thread.start()
    thread.join()
    with made[0] as server:
        yield server


def _set_namespace(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, NET) != 0:
        raise OSError(ctypes.get_errno(), "another network")


def _relay(server: socket.socket, target: tuple[str, int]) -> None:
    while True:
        try:
            peer, _ = server.accept()
        except OSError:
            return
        threading.Thread(target=_join, args=(peer, target), daemon=True).start()


def _join(peer: socket.socket, target: tuple[str, int]) -> None:
    with peer, suppress(OSError), socket.create_connection(target, timeout=10) as other:
        other.settimeout(None)
        back = threading.Thread(target=_copy, args=(other, peer), daemon=True)
        back.start()
        _copy(peer, other)
        back.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
