"""A machine with the real OpenSSH server: processes and a home of its own, gone with the test.

Its commands see nobody else's processes, so that one that ends logins ends none of this machine's.
Needs root for that; without root, or without the server, it is a failure and never a skip.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from spotd.act.ssh import Address
from spotd.vault import JobKeys, host_key
from tests.rigs.processes import below
from tests.rigs.sshd import TOKEN, keys
from tests.rigs.station import kill
from tests.rigs.waiting import wait_until

SSHD = Path("/usr/sbin/sshd")
_CONFIG = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host_key
PidFile none
AuthorizedKeysFile .ssh/authorized_keys
StrictModes no
UsePAM no
UseDNS no
PasswordAuthentication no
PermitRootLogin prohibit-password
"""
_START = """
set -eu
mount --bind "$1/home" /root
mount -t tmpfs -o mode=1777 shm /dev/shm
mkdir -p /run/sshd
exec /usr/sbin/sshd -D -f "$1/sshd_config" -E "$1/log"
"""


@dataclass
class Machine:
    """Where it listens, and the home of its only user."""

    home: Path
    port: int
    keys: JobKeys
    process: subprocess.Popen[bytes]

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.port, "root", host_key(self.keys, TOKEN).public)

    def commands(self) -> list[str]:
        """The command lines of everything that runs there."""
        found = []
        for pid in below(self.process.pid):
            with suppress(OSError):
                found.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip())
        return found


@contextmanager
def machine(folder: Path) -> Iterator[Machine]:
    """A machine that lets the keys of `sshd.keys()` in."""
    if os.geteuid() != 0:
        raise RuntimeError("an OpenSSH server of its own needs root: run this test as root")
    if not SSHD.exists():
        raise RuntimeError(f"{SSHD} is missing: apt-get install openssh-server")
    job = keys()
    (folder / "home" / ".ssh").mkdir(parents=True)
    (folder / "home" / ".ssh" / "authorized_keys").write_text(f"{job.user.public}\n")
    (folder / "host_key").touch(0o600)
    (folder / "host_key").write_text(host_key(job, TOKEN).private)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "sshd_config").write_text(_CONFIG.format(port=port, folder=folder))
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork",
         "--kill-child", "--mount-proc", "sh", "-c", _START, "sh", str(folder)],
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_until("sshd to listen", lambda: _listens(port))
        yield Machine(folder / "home", port, job, process)
    finally:
        for pid in below(process.pid):
            kill(pid)
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
