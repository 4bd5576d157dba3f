"""Where machines come from: the server's side of the zygote, and the link to each machine."""

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

_ANSWER_S = 5.0
_UNLOCK_S = 3.0  # for the machines of a server that was just killed to end
_SHM = Path("/dev/shm")  # noqa: S108  only as the parent of folders with unguessable owners' names

OnEvent = Callable[[Mapping[str, object]], None]


class ProcessPoolError(Exception):
    """A machine could not be started, or does not obey."""


@dataclass(frozen=True)
class SpawnRequest:
    """All a machine needs to start. `sockets` are those of its SSH server and its metadata service,
    bound and not listening; none for a machine that has a program of its own."""

    facts: MachineFacts
    ssh_user: str
    ssh_public_key: str
    host_private_key: str
    boot_delay_s: float
    host: str
    sockets: tuple[socket.socket, ...]

    def close(self) -> None:
        """Give the ports back; the machine will not be."""
        for bound in self.sockets:
            bound.close()


class MachineProcess:
    """A machine's process. `on_event` hears its reports, and `{"event": "gone"}` at the end."""

    def __init__(
        self, ident: str, pid: int, link: socket.socket, scratch: list[Path], on_event: OnEvent
    ) -> None:
        self.ident = ident
        self.pid = pid
        self.scratch = scratch
        self.stopped = False
        self._link = link
        self._on_event = on_event
        self._asking = threading.Lock()
        self._heard = threading.Condition()
        self._events: list[Mapping[str, object]] = []
        self._gone = False
        threading.Thread(target=self._listen, name=f"link-{ident}", daemon=True).start()

    def ask(self, order: dict[str, object], event: str) -> Mapping[str, object]:
        """Give an order and wait for the report of that name. Raises NurseryError."""
        with self._asking, self._heard:
            self._events.clear()
            try:
                send_message(self._link, order)
            except OSError as error:
                raise ProcessPoolError(f"machine {self.ident} is gone: {error}") from None
            found: list[Mapping[str, object]] = []

            def answered() -> bool:
                found.extend(e for e in self._events if e.get("event") == event)
                return bool(found) or self._gone

            if not self._heard.wait_for(answered, _ANSWER_S) or not found:
                raise ProcessPoolError(f"machine {self.ident} did not answer {event!r}")
            return found[0]

    def stop(self) -> None:
        """Stop everything at once, the sockets' owner included: nobody out there hears a word."""
        self.stopped = True
        process_tree.stop_tree(self.pid)

    def kill_below(self) -> None:
        """Kill what runs on the machine, not the owner of its sockets."""
        process_tree.kill_below(self.pid)

    def thaw(self) -> None:
        """Let a stopped machine run again."""
        self.stopped = False
        process_tree.continue_tree(self.pid)

    def kill(self) -> None:
        """Kill the whole machine and delete its disk; returns when nothing is left."""
        with self._heard:
            gone = self._gone
        if gone or not process_tree.kill_tree(self.pid):
            # It had died by itself: what it left behind now hangs below the zygote.
            process_tree.kill_marked("SPOTD_LOCAL_INSTANCE", self.ident)
        for folder in self.scratch:
            if folder.exists():
                disks.discard(folder)

    def _listen(self) -> None:
        while True:
            try:
                message = receive_message(self._link)
            except OSError:
                message = None
            with self._heard:
                if message is None:
                    self._gone = True
                else:
                    self._events.append(message[0])
                self._heard.notify_all()
            if message is None:
                self._link.close()
                self._on_event({"event": "gone"})
                return
            self._on_event(message[0])


def _lock(folder: Path) -> IO[str]:
    """The folder for us alone, until the file is closed. Raises NurseryError."""
    lock = (folder / "lock").open("a")
    end = time.monotonic() + _UNLOCK_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                lock.close()
                text = f"another local cloud uses {folder}: stop it, or give another folder"
                raise ProcessPoolError(text) from None
            time.sleep(0.02)
        else:
            return lock


class ProcessPool:
    """Owns the folder and the zygote, whose death (`lost` is called) ends the cloud. `program`
    makes the machines, if they are not to be processes of ours.

    Raises NurseryError when another server has the folder, or the zygote does not start.
    """

    def __init__(self, folder: Path, lost: Callable[[], None], program: Path | None = None) -> None:
        self._folder = folder
        self._program = program
        self._lock = threading.Lock()
        self._lost = lost
        self._closing = False
        self._folder_lock = _lock(folder)
        for name in ("instances", "logs"):
            (folder / name).mkdir(mode=0o700, exist_ok=True)
        process_tree.become_root("spotd-local")  # should the zygote die, its machines come to us
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # The zygote holds the lock too: the folder is free when the last machine has ended.
        fds = [theirs.fileno(), self._folder_lock.fileno()]
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
        theirs.close()
        if receive_message(self._link) is None:
            raise ProcessPoolError("the zygote did not start; its error is above")
        threading.Thread(target=self._watch, name="zygote", daemon=True).start()

    def bear(self, birth: SpawnRequest, on_event: OnEvent) -> MachineProcess:
        """Start a machine. Raises NurseryError. The sockets given are closed here."""
        ident = birth.facts.instance_id
        scratch = self._scratch(ident)
        for folder in scratch:
            folder.mkdir(mode=0o700)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        config: dict[str, object] = {
            "id": ident,
            "host": birth.host,
            "program": str(self._program or ""),
            "home": str(scratch[0]),
            "runtime": str(scratch[-1]),
            "log": str(self._folder / "logs" / f"{ident}.log"),
            "path": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "boot_delay_s": birth.boot_delay_s,
            "facts": birth.facts.to_data(),
            "scratch": [str(folder) for folder in scratch],
            "login": {
                "user": birth.ssh_user,
                "public_key": birth.ssh_public_key,
                "host_private_key": birth.host_private_key,
            },
        }
        with theirs, contextlib.closing(birth), self._lock:
            fds = (theirs.fileno(), *(bound.fileno() for bound in birth.sockets))
            try:
                send_message(self._link, config, fds)
                answer = receive_message(self._link)
            except OSError as error:
                answer = None
                print(f"local cloud: the zygote is gone: {error}", file=sys.stderr)
        if answer is None:
            ours.close()
            raise ProcessPoolError("the zygote is gone; start the local cloud again")
        return MachineProcess(ident, int(str(answer[0]["pid"])), ours, scratch, on_event)

    def discard(self, idents: list[str]) -> None:
        """Delete the disks of machines whose server was killed."""
        for ident in idents:
            for folder in self._scratch(ident):
                with contextlib.suppress(FileNotFoundError):
                    disks.discard(folder)

    def close(self) -> None:
        """End the zygote, and with it every machine that is left."""
        self._closing = True
        self._link.shutdown(socket.SHUT_RDWR)
        self._process.wait()
        self._link.close()
        self._folder_lock.close()

    def _scratch(self, ident: str) -> list[Path]:
        """The disk, and a folder in memory where there is such a thing (XDG_RUNTIME_DIR)."""
        disk = self._folder / "instances" / ident
        return [disk, _SHM / f"spotd-{ident}"] if _SHM.is_dir() else [disk]

    def _watch(self) -> None:
        self._process.wait()
        if not self._closing:
            print("local cloud: the zygote died; ending every machine", file=sys.stderr)
            self._lost()
