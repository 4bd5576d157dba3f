"""Spawn machine processes through the fork server, and talk to each over its control link."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from providers.local import disks, process_tree
from providers.local.documents import MachineFacts
from providers.local.fork_server import receive_message, send_message

_RESPONSE_TIMEOUT_S = 5.0
_LOCK_TIMEOUT_S = 3.0  # time for the machines of a killed server to end
_SHM = Path("/dev/shm")  # noqa: S108  only as the parent of folders with unguessable owners' names

OnEvent = Callable[[Mapping[str, object]], None]


class ProcessPoolError(Exception):
    """A machine could not be started, or does not respond."""


@dataclass(frozen=True)
class SpawnRequest:
    """Everything needed to start a machine.

    `sockets` are the bound sockets of its SSH server and metadata service, none for a machine with
    its own program.
    """

    facts: MachineFacts
    ssh_user: str
    ssh_public_key: str
    host_private_key: str
    boot_delay_s: float
    host: str
    sockets: tuple[socket.socket, ...]

    def close(self) -> None:
        """Release the ports of a machine that will not be started."""
        for bound in self.sockets:
            bound.close()


class MachineProcess:
    """A machine's process. `on_event` is called with each of its events and finally with
    `{"event": "gone"}`."""

    def __init__(
        self, ident: str, pid: int, link: socket.socket, scratch: list[Path], on_event: OnEvent
    ) -> None:
        self.ident = ident
        self.pid = pid
        self.scratch = scratch
        self.stopped = False
        self._link = link
        self._on_event = on_event
        self._request_lock = threading.Lock()
        self._changed = threading.Condition()
        self._events: list[Mapping[str, object]] = []
        self._gone = False
        threading.Thread(target=self._read_events, name=f"link-{ident}", daemon=True).start()

    def request(self, order: dict[str, object], event: str) -> Mapping[str, object]:
        """Send an order and wait for the event that reports it done. Raises ProcessPoolError."""
        with self._request_lock, self._changed:
            self._events.clear()
            try:
                send_message(self._link, order)
            except OSError as error:
                raise ProcessPoolError(f"machine {self.ident} is gone: {error}") from None
            replies: list[Mapping[str, object]] = []

            def is_done() -> bool:
                replies.extend(e for e in self._events if e.get("event") == event)
                return bool(replies) or self._gone

            if not self._changed.wait_for(is_done, _RESPONSE_TIMEOUT_S) or not replies:
                raise ProcessPoolError(f"machine {self.ident} did not answer {event!r}")
            return replies[0]

    def stop(self) -> None:
        """Stop the whole machine, including the owner of its sockets: nothing is sent any more."""
        self.stopped = True
        process_tree.stop_tree(self.pid)

    def kill_below(self) -> None:
        """Kill the processes on the machine, but not the owner of its sockets."""
        process_tree.kill_below(self.pid)

    def thaw(self) -> None:
        """Resume a stopped machine."""
        self.stopped = False
        process_tree.continue_tree(self.pid)

    def kill(self) -> None:
        """Kill the whole machine and delete its disk; returns when both are done."""
        with self._changed:
            gone = self._gone
        if gone or not process_tree.kill_tree(self.pid):
            # It died by itself, and its processes were adopted by the fork server.
            process_tree.kill_with_environment("SPOTD_LOCAL_INSTANCE", self.ident)
        for folder in self.scratch:
            if folder.exists():
                disks.discard(folder)

    def _read_events(self) -> None:
        while True:
            try:
                message = receive_message(self._link)
            except OSError:
                message = None
            with self._changed:
                if message is None:
                    self._gone = True
                else:
                    self._events.append(message[0])
                self._changed.notify_all()
            if message is None:
                self._link.close()
                self._on_event({"event": "gone"})
                return
            self._on_event(message[0])


def _lock_folder(folder: Path) -> IO[str]:
    """Lock the folder until the returned file is closed. Raises ProcessPoolError."""
    lock = (folder / "lock").open("a")
    deadline_s = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                lock.close()
                message = f"another local cloud uses {folder}: stop it, or give another folder"
                raise ProcessPoolError(message) from None
            time.sleep(0.02)
        else:
            return lock


class ProcessPool:
    """Starts machines. Holds the lock of the folder and runs the fork server.

    `on_death` is called if the fork server dies. `program` runs the machines, instead of our own
    implementation. Raises ProcessPoolError if another server uses the folder or the fork server
    does not start.
    """

    def __init__(
        self, folder: Path, on_death: Callable[[], None], program: Path | None = None
    ) -> None:
        self._folder = folder
        self._program = program
        self._lock = threading.Lock()
        self._on_death = on_death
        self._closing = False
        self._folder_lock = _lock_folder(folder)
        for name in ("instances", "logs"):
            (folder / name).mkdir(mode=0o700, exist_ok=True)
        process_tree.become_root("spotd-local")  # adopts the machines if the fork server dies
        self._link, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # The fork server holds the lock too, so it is released only after the last machine ended.
        fds = [peer.fileno(), self._folder_lock.fileno()]
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "providers.local.fork_server",
                *map(str, fds),
                str(folder / "alive"),
            ],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        peer.close()
        if receive_message(self._link) is None:
            raise ProcessPoolError("the fork server did not start; its error is above")
        threading.Thread(target=self._watch, name="fork-server", daemon=True).start()

    def spawn(self, spawn_request: SpawnRequest, on_event: OnEvent) -> MachineProcess:
        """Start a machine and close the request's sockets here. Raises ProcessPoolError."""
        ident = spawn_request.facts.instance_id
        scratch = self._scratch(ident)
        for folder in scratch:
            folder.mkdir(mode=0o700)
        link, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        config: dict[str, object] = {
            "id": ident,
            "host": spawn_request.host,
            "program": str(self._program or ""),
            "home": str(scratch[0]),
            "runtime": str(scratch[-1]),
            "log": str(self._folder / "logs" / f"{ident}.log"),
            "path": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "boot_delay_s": spawn_request.boot_delay_s,
            "facts": spawn_request.facts.to_data(),
            "scratch": [str(folder) for folder in scratch],
            "login": {
                "user": spawn_request.ssh_user,
                "public_key": spawn_request.ssh_public_key,
                "host_private_key": spawn_request.host_private_key,
            },
        }
        with peer, contextlib.closing(spawn_request), self._lock:
            fds = (peer.fileno(), *(bound.fileno() for bound in spawn_request.sockets))
            try:
                send_message(self._link, config, fds)
                response = receive_message(self._link)
            except OSError as error:
                response = None
                print(f"local cloud: the fork server is gone: {error}", file=sys.stderr)
        if response is None:
            link.close()
            raise ProcessPoolError("the fork server is gone; start the local cloud again")
        return MachineProcess(ident, int(str(response[0]["pid"])), link, scratch, on_event)

    def discard(self, idents: list[str]) -> None:
        """Delete the disks of machines whose server was killed."""
        for ident in idents:
            for folder in self._scratch(ident):
                with contextlib.suppress(FileNotFoundError):
                    disks.discard(folder)

    def close(self) -> None:
        """End the fork server and with it all remaining machines."""
        self._closing = True
        self._link.shutdown(socket.SHUT_RDWR)
        self._process.wait()
        self._link.close()
        self._folder_lock.close()

    def _scratch(self, ident: str) -> list[Path]:
        """The machine's disk, and a folder in memory for XDG_RUNTIME_DIR if /dev/shm exists."""
        disk = self._folder / "instances" / ident
        return [disk, _SHM / f"spotd-{ident}"] if _SHM.is_dir() else [disk]

    def _watch(self) -> None:
        self._process.wait()
        if not self._closing:
            print("local cloud: the fork server died; ending every machine", file=sys.stderr)
            self._on_death()
