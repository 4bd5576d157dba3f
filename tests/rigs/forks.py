"""Processes without the seconds of CPU that their imports take, of torch above all: they are forked
from one process that has these already.

What is forked is a process like any other: its own session, environment, folder and exit code, to
be stopped, killed and frozen. What differs from a new interpreter: libraries are there before its
first line, and have read what they read of the environment when they are loaded, such as
OMP_NUM_THREADS: what is given to `nursery`. Its command line, and the environment that /proc shows,
are those of the process that it was forked from.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
# What is run in forks, and begins anew in each: loaded beforehand is what it needs.
PROGRAMS = ("trainer.train", "trainer.saver.__main__", "tests.trainer.saver.doomed")
TORCH = ("numpy", "obstore", "torch", "xxhash", *PROGRAMS)
_MAX_BYTES = 100_000  # of one message
_MAX_FDS = 4
_FOR_EVER_S = 1e6


class Fork:
    """One process; it is asked and struck as a `subprocess.Popen` is."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery = nursery
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, minus the signal's number if one ended it; None while it runs."""
        if self.returncode is None:
            self.returncode = self._nursery.ended(self.pid, 0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        for_s = _FOR_EVER_S if timeout is None else timeout
        if self.returncode is None:
            self.returncode = self._nursery.ended(self.pid, for_s)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", for_s)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process that forks, with these modules loaded and more variables in its environment. Its
    end of the link closed, it goes."""

    def __init__(self, modules: Sequence[str], **variables: str) -> None:
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ended: dict[int, int] = {}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.rigs.forks", str(theirs.fileno()), *modules],
                cwd=ROOT,
                env=os.environ | variables,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def fork(
        self,
        module: str,
        arguments: Sequence[str],
        env: Mapping[str, str],
        folder: Path,
        log: Path,
        fds: Sequence[int] = (),
    ) -> Fork:
        """`python -m module arguments`; what it prints is appended to `log`. What these file
        descriptors are with us, it has too: their numbers with it are its last arguments."""
        wanted = {
            "module": module,
            "arguments": list(arguments),
            "env": dict(env),
            "folder": str(folder),
            "log": str(log),
        }
        socket.send_fds(self._link, [json.dumps(wanted).encode()], fds)
        while (pid := self._take(60.0)) is None:
            pass
        return Fork(self, pid)

    def ended(self, pid: int, timeout_s: float) -> int | None:
        """The exit code of a process that ended within that time."""
        until = time.monotonic() + timeout_s
        while pid not in self._ended:
            left_s = until - time.monotonic()
            if not select.select([self._link], [], [], max(0.0, left_s))[0]:
                return None
            self._take(0.0)
        return self._ended.pop(pid)

    def close(self) -> None:
        self._link.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:  # torch is taken down slowly on a busy machine
            self._process.kill()
            self._process.wait()

    def _take(self, timeout_s: float) -> int | None:
        """One message: the process that was forked, or None and an end is noted."""
        self._link.settimeout(timeout_s or None)
        said: dict[str, int] = json.loads(self._link.recv(_MAX_BYTES))
        if "code" not in said:
            return said["pid"]
        self._ended[said["pid"]] = said["code"]
        return None


@functools.cache
def nursery(*modules: str, **variables: str) -> Nursery:
    """This process's own, while it lives: one for each environment; with torch, unless told."""
    made = Nursery(modules or TORCH, **variables)
    atexit.register(made.close)
    return made


def _serve(link: socket.socket) -> dict[str, Any] | None:
    """Fork and tell who ended, until nobody asks; the request, in the process that is to run it."""
    children: dict[int, int] = {}  # by pidfd
    while True:
        for fd in select.select([link, *children], [], [])[0]:
            if fd is link:
                asked, fds, _, _ = socket.recv_fds(link, _MAX_BYTES, _MAX_FDS)
                if not asked:
                    return None
                pid = os.fork()
                if not pid:
                    for other in children:
                        os.close(other)
                    link.close()
                    request: dict[str, Any] = json.loads(asked)
                    request["arguments"] += map(str, fds)
                    return request
                for given in fds:
                    os.close(given)
                children[os.pidfd_open(pid)] = pid
                link.send(json.dumps({"pid": pid}).encode())
            elif pid := children.pop(fd, 0):
                os.close(fd)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                link.send(json.dumps({"pid": pid, "code": code}).encode())


def _become(request: dict[str, Any]) -> None:
    os.setsid()
    os.chdir(request["folder"])
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for ours, theirs in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(ours, theirs)
    os.close(log)
    os.close(nothing)
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv[1:] = request["arguments"]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    import gc

    for name in sys.argv[2:]:
        importlib.import_module(name)
    for name in PROGRAMS:
        sys.modules.pop(name, None)
    gc.freeze()
    if (wanted := _serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        _become(wanted)
