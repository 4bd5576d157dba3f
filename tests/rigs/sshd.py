"""A machine that can be reached by SSH: a process of its own, real commands, a folder as its home.

Run as a program it is the machine: its configuration, and two file descriptors: where it listens,
and what is closed when it is to end.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from spotd.act.ssh import Address
from spotd.vault import JobKeys, KeyPair, host_key
from tests.rigs.forks import Fork, nursery

TOKEN = "t-1"
LOADED = ("providers.local.reaper", "providers.local.sshd", "spotd.act.ssh", "spotd.vault")


@dataclass
class Machine:
    """Where it listens, with the keys that open it; `process` is its server."""

    home: Path
    port: int
    keys: JobKeys
    process: Fork = field(repr=False)
    _alive: int = field(repr=False)  # our end of its last descriptor

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
            with suppress(ProcessLookupError):  # it has just ended, and we have not heard of it yet
                self.thaw()
                self.process.kill()
            self.process.wait()

    def close(self) -> None:
        """Stop, and let go of it."""
        self.stop()
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1


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
    config = {
        "user": "spotd",
        "public_key": job.user.public,
        "host_private_key": host_key(job, TOKEN).private,
        "home": str(home),
        "path": path or os.environ["PATH"],
    }
    theirs, alive = os.pipe()
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", port))
        bound.listen()  # who connects from now on is waited for
        port = bound.getsockname()[1]
        fds = (bound.fileno(), theirs)
        place, log = Path.cwd(), Path(f"{home}.log")
        words = [json.dumps(config)]
        process = nursery(*LOADED).fork("tests.rigs.sshd", words, os.environ, place, log, fds)
    os.close(theirs)
    return Machine(home, port, job, process, alive)


def main() -> None:
    from providers.local.reaper import Reaper
    from providers.local.sshd import Login, SshServer

    config, listener, alive = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    bound = socket.socket(fileno=listener)
    environment = {name: config[name] for name in ("home", "path")}
    environment = {name.upper(): value for name, value in environment.items()}
    # As every machine that is but a process says: who ends logins there ends none of this computer.
    environment["SPOTD_LOCAL_INSTANCE"] = "machine"
    server = SshServer(bound, Login.from_data(config), environment, Reaper(), lambda: None)
    server.start()
    os.read(alive, 1)


if __name__ == "__main__":
    main()
