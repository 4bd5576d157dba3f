"""The keeper: one small process between the agent and a script, so that neither needs the other.

It starts the script in a session of its own, writes its output to the log, and leaves its exit code
in a file. The agent may die and come back meanwhile. What the script's descendants detach comes
back to the keeper as children (it is their subreaper), so that nothing gets away from the agent.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from providers.credential_leases import secrets_in
from trainer.agent.base.streams import LogWriter
from trainer.agent.process.processes import Process, identify

_PR_SET_CHILD_SUBREAPER = 36
_CHUNK_BYTES = 1 << 16
_TAIL_BYTES = 2048
_RECORD_BYTES = 16 << 10  # the tail takes six bytes a byte as JSON, at most
_QUIET_S = 0.1  # output still under way when the script ends
MASK = b"***"
_MASKED_FROM_BYTES = 4  # shorter secrets would mask half of the output


@dataclass(frozen=True)
class Order:
    """What to run. `state` is the path before `.proc` and `.exit`; `wake` the agent's socket;
    `lent` the file of what the machine is lent of its store, which changes while it runs."""

    argv: Sequence[str]
    cwd: str
    env: Mapping[str, str]
    log: str
    log_limit_bytes: int
    state: str
    wake: str
    secrets: Sequence[str]
    lent: str = ""

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


@dataclass(frozen=True)
class Pids:
    """Who runs: the keeper and its script."""

    keeper: Process
    program: Process


@dataclass(frozen=True)
class Exit:
    """How a script ended: its code (128 + number for a signal) and its last output."""

    code: int
    tail: str
    seconds: float


def read_pids(state: Path) -> Pids | None:
    """None when the script was not started."""
    data = _read(state.with_suffix(".proc"))
    if data is None:
        return None
    return Pids(Process(*data["keeper"]), Process(*data["program"]))


def read_exit(state: Path) -> Exit | None:
    """None when the script has not ended."""
    data = _read(state.with_suffix(".exit"))
    return None if data is None else Exit(data["code"], data["tail"], data["seconds"])


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None


class Record:
    """A private file whose room is taken before it is needed: memory may be full by then.

    Others find it after `put`. Raises OSError when there is no room.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._new = path, path.with_name(path.name + ".new")
        descriptor = os.open(self._new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._file = os.fdopen(descriptor, "wb")
        self._file.write(bytes(_RECORD_BYTES))
        self._file.flush()

    def put(self, data: Mapping[str, Any]) -> None:
        """Write it and let it be found."""
        with self._file as file:
            file.seek(0)
            file.write(json.dumps(data).encode())
            file.truncate()
        self._new.replace(self._path)


class Mask:
    """Replaces secrets in a stream of bytes, also where two reads cut one in half."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets: list[bytes] = []
        self._held = b""
        self.add(secrets)

    def add(self, secrets: Iterable[str]) -> None:
        """These too, from now on."""
        found = {secret.encode() for secret in secrets} | {*self._secrets}
        self._secrets = sorted((s for s in found if len(s) >= _MASKED_FROM_BYTES), key=len)[::-1]

    def feed(self, data: bytes) -> bytes:
        """What can be shown now; the beginning of what may become a secret is held back."""
        data = self._held + data
        for secret in self._secrets:
            data = data.replace(secret, MASK)
        held = max((_overlap(data, secret) for secret in self._secrets), default=0)
        self._held = data[len(data) - held :]
        return data[: len(data) - held]

    def flush(self) -> bytes:
        held, self._held = self._held, b""
        return held


def _overlap(data: bytes, secret: bytes) -> int:
    """Length of the longest end of `data` that begins `secret`."""
    lengths = range(min(len(data), len(secret) - 1), 0, -1)
    return next((n for n in lengths if data.endswith(secret[:n])), 0)


class _Output:
    """Pipe to log: masked, rotated, the tail remembered."""

    def __init__(self, pipe: int, order: Order) -> None:
        self._pipe = pipe
        self._mask = Mask(order.secrets)
        self._lent, self._lent_at_ns = order.lent, dict[Path, int]()
        self._log = LogWriter(Path(order.log), order.log_limit_bytes)
        self._tail = b""
        self.open = True
        os.set_blocking(pipe, False)

    def pump(self) -> bool:
        """Move what is there; False when nothing was."""
        try:
            data = os.read(self._pipe, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        self.open = bool(data)
        self._learn()
        self._show(self._mask.feed(data) if data else self._mask.flush())
        return True

    def _learn(self) -> None:
        """What the machine was lent since. What it was lent before may still be shown."""
        if not self._lent:
            return
        own = Path(self._lent)  # of the job's store; and of those beside it
        for path in (own, *own.parent.glob(f"{own.name}-{'[0-9a-f]' * 16}")):
            with contextlib.suppress(OSError, ValueError):  # nothing is lent, or no longer
                at_ns = path.stat().st_mtime_ns
                if at_ns != self._lent_at_ns.get(path):
                    self._mask.add(secrets_in(path.read_text()))
                    self._lent_at_ns[path] = at_ns

    def tail(self) -> str:
        self._show(self._mask.flush())
        return self._tail.decode("utf-8", "replace")

    def _show(self, data: bytes) -> None:
        self._log.write(data)
        self._tail = (self._tail + data)[-_TAIL_BYTES:]


def keep() -> int:
    """Read an order from stdin, run it, and stay until its output is closed."""
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return 0  # the agent ended before it had anything to run
    order = Order(**json.loads(line))
    # The way home for orphans is a comfort (see the module text); without it training runs too.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # Not SIG_IGN, which the script would inherit.
        signal.signal(number, lambda *_: None)
    state = Path(order.state)
    pids, ended = Record(state.with_suffix(".proc")), Record(state.with_suffix(".exit"))
    began = time.monotonic()
    try:
        program = subprocess.Popen(
            list(order.argv),
            cwd=order.cwd,
            env=dict(order.env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        _record_exit(ended, order, 127, f"{order.argv[0]} cannot be started: {error}", 0.0)
        return 1
    _record_pids(pids, program.pid)
    _wake(order.wake)
    assert program.stdout is not None  # noqa: S101 - a pipe was asked for
    output = _Output(program.stdout.fileno(), order)
    _pump_while(program, output)
    code = program.returncode if program.returncode >= 0 else 128 - program.returncode
    _record_exit(ended, order, code, output.tail(), time.monotonic() - began)
    # What a setup script left running keeps its output.
    while output.open:
        _wait(program.stdout.fileno(), None, None)
        output.pump()
        _reap_orphans(program.pid)
    return 0


def _record_pids(record: Record, program: int) -> None:
    keeper = identify(os.getpid())
    # The script may have ended already: it waits to be reaped, and its start time with it.
    started = identify(program) or Process(program, 0)
    assert keeper is not None  # noqa: S101 - this very process
    record.put({"keeper": [keeper.pid, keeper.started], "program": [started.pid, started.started]})


def _record_exit(record: Record, order: Order, code: int, tail: str, seconds: float) -> None:
    record.put(asdict(Exit(code, tail, round(seconds, 3))))
    _wake(order.wake)


def _pump_while(program: subprocess.Popen[bytes], output: _Output) -> None:
    """Until the script has ended and its last output is in; not until its descendants closed it."""
    assert program.stdout is not None  # noqa: S101 - a pipe was asked for
    pipe, watch = program.stdout.fileno(), _watch(program.pid)
    while program.poll() is None:
        _wait(pipe if output.open else None, watch, None if watch is not None else 0.1)
        if output.open:
            output.pump()
        _reap_orphans(program.pid)
    if output.open:
        output.pump()  # its own last words are in the pipe, however late we come to look
    quiet_at = time.monotonic() + _QUIET_S
    while output.open and (left := quiet_at - time.monotonic()) > 0:
        _wait(pipe, None, left)
        output.pump()
    if watch is not None:
        os.close(watch)


def _reap_orphans(program: int) -> None:
    """Processes that came to us when their parents ended; never the script itself."""
    with contextlib.suppress(ChildProcessError):
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while (ended := os.waitid(os.P_ALL, 0, look)) is not None and ended.si_pid != program:
            os.waitpid(ended.si_pid, 0)


def _watch(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends, where the kernel has that."""
    try:
        return os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
    except OSError:
        return None


def _wait(pipe: int | None, watch: int | None, timeout_s: float | None) -> None:
    wanted = [descriptor for descriptor in (pipe, watch) if descriptor is not None]
    with contextlib.suppress(InterruptedError):
        select.select(wanted, [], [], timeout_s)


def _wake(path: str) -> None:
    """Tell the agent that there is something to see; it looks by itself too, if less often."""
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection,
    ):
        connection.settimeout(1.0)
        connection.connect(path)
        connection.sendall(b'{"wake":{}}\n')
