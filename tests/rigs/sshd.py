"""A machine that can be reached by SSH: a process of its own, real commands, a folder as its home.

Run as a program it is the machine: configuration on stdin, its port on stdout, until stdin ends.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from spotd.act.ssh import Address
from spotd.vault import JobKeys, KeyPair, host_key

TOKEN = "t-1"


@dataclass
class Machine:
    """Where it listens, with the keys that open it; `process` is its server."""

    home: Path
    port: int
    keys: JobKeys
    process: subprocess.Popen[bytes] = field(repr=False)

    @property
    def host(self) -> KeyPair:
        return host_key(self.keys, TOKEN)

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.port, "spotd", self.host.public)

    def freeze(self) -> None:
        """As a hung guest: its kernel still answers, nothing in it does."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def stop(self) -> None:
        """End the server; commands that it started are left alone."""
        if self.process.poll() is None:
            self.thaw()
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        """Stop, and let go of its pipes."""
        self.stop()
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()


def keys(seed: int = 1) -> JobKeys:
    """A job's keys, the same for the same seed."""
    return JobKeys.create(lambda count: bytes([seed]) * count)


@contextmanager
def machine(home: Path, port: int = 0, *, path: str = "") -> Iterator[Machine]:
    """A machine with its disk at `home`; `path` replaces PATH on it."""
    found = start(home, port, path=path)
    try:
        yield found
    finally:
        found.close()


def start(home: Path, port: int = 0, *, path: str = "") -> Machine:
    """Start a machine; it answers when this returns."""
    home.mkdir(parents=True, exist_ok=True)
    job = keys()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.rigs.sshd"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin
    assert process.stdout
    config = {
        "user": "spotd",
        "public_key": job.user.public,
        "host_private_key": host_key(job, TOKEN).private,
        "port": port,
        "home": str(home),
        "path": path or os.environ["PATH"],
    }
    process.stdin.write(json.dumps(config).encode() + b"\n")
    process.stdin.flush()
    return Machine(home, int(process.stdout.readline()), job, process)


def main() -> None:
    from providers.local.reaper import Reaper
    from providers.local.sshd import Login, SshServer

    config = json.loads(sys.stdin.readline())
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", config["port"]))
    environment = {name: config[name] for name in ("home", "path")}
    environment = {name.upper(): value for name, value in environment.items()}
    # As every machine that is but a process says: who ends logins there ends none of this computer.
    environment["SPOTD_LOCAL_INSTANCE"] = "machine"
    server = SshServer(bound, Login.from_data(config), environment, Reaper(), lambda: None)
    server.start()
    print(bound.getsockname()[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
