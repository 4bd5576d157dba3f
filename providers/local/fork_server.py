"""The fork server: a single-threaded process with all imports loaded that forks machines quickly.

`python -m providers.local.fork_server LINK LOCK ALIVE` serves the socket LINK (a file descriptor)
of the cloud server that started it. A request is one JSON document with three file descriptors
(control link, SSH listener, metadata listener), or only the control link for a machine with its own
program (see site.py). The response is `{"pid": N}`.

When the cloud server ends for any reason, LINK reads end-of-file and all machines are killed,
stopped ones included. Then the file ALIVE is touched to record when the machines ended, and the
lock LOCK is released.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

from providers.local import disks, instance, process_tree

_MAX_BYTES = 150_000  # upper limit of one message
_FDS = 3


def send_message(link: socket.socket, document: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
    """Send one JSON document as one packet, with file descriptors attached."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    link.sendmsg([json.dumps(document).encode()], ancillary)


def receive_message(link: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Receive the next document and its file descriptors; None at end-of-file."""
    data, ancillary, _flags, _address = link.recvmsg(_MAX_BYTES, socket.CMSG_SPACE(_FDS * 4))
    fds = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    if not data:
        return None
    return json.loads(data), list(fds)


def main(argv: list[str]) -> int:
    """Serve fork requests until the cloud server ends, then kill all machines."""
    link, lock_fd, alive = socket.socket(fileno=int(argv[0])), int(argv[1]), Path(argv[2])
    link.set_inheritable(False)
    process_tree.become_root("spotd-local-zyg")
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C on the terminal is for the cloud server
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # machines are reaped by the kernel
    send_message(link, {"ready": True})
    scratch: list[str] = []
    try:
        while message := receive_message(link):
            config, fds = message
            scratch += config["scratch"]
            send_message(link, {"pid": _fork((link.fileno(), lock_fd), config, fds)})
    except ConnectionError as error:
        print(f"local cloud: the server is gone: {error}", file=sys.stderr)
    _kill_all(scratch)
    alive.touch()
    return 0


def _kill_all(scratch: list[str]) -> None:
    me = os.getpid()
    while any(
        process.state not in "ZX"
        for process in process_tree.descendants(me, thorough=True).values()
    ):
        process_tree.stop_tree(me, with_root=False)
        process_tree.kill_below(me)
    for folder in scratch:
        with contextlib.suppress(OSError):  # most were deleted with their machines
            disks.discard(Path(folder))


def _fork(inherited_fds: tuple[int, ...], config: dict[str, Any], fds: list[int]) -> int:
    pid = os.fork()
    if pid:
        for fd in fds:
            os.close(fd)
        return pid
    status = 1
    try:
        for fd in inherited_fds:
            os.close(fd)
        for number in (
            signal.SIGINT,
            signal.SIGCHLD,
            signal.SIGHUP,
            signal.SIGTERM,
            signal.SIGQUIT,
        ):
            signal.signal(number, signal.SIG_DFL)  # the parent may have ignored some of them
        os.setsid()
        log = os.open(Path(str(config["log"])), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        if config["program"]:
            _exec_program(config, fds[0])
        status = instance.run(config, *fds)
    except BaseException:  # noqa: BLE001  the child must never return into the fork loop
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _exec_program(config: dict[str, Any], control_fd: int) -> None:
    """Execute the machine's own program with the configuration on its stdin. Does not return."""
    stdin = os.memfd_create("machine")
    os.write(stdin, json.dumps(config).encode())
    os.lseek(stdin, 0, os.SEEK_SET)
    os.dup2(stdin, 0)
    os.set_inheritable(control_fd, True)
    os.execv(config["program"], [config["program"], str(control_fd)])  # noqa: S606


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
