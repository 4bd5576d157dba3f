"""The script supervisor: a small process between the agent and a script, so that the agent can
restart.

It starts the script in a new session, writes its output to the log, and its exit code to a file.
The agent may die and come back meanwhile. The supervisor is a subreaper: detached descendants of
the script become its children, so that the agent can find and kill all of them.
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
from spotd import wire
from spotd.wire import find_cause, last_lines
from trainer.agent.base.streams import LogWriter
from trainer.agent.process.processes import Process, identify

_PR_SET_CHILD_SUBREAPER = 36
_CHUNK_BYTES = 1 << 16
_SEARCH_BYTES = 64 << 10  # of the end of the output, in which the cause is looked for
_TAIL_BYTES = 2048
_RECORD_BYTES = 16 << 10  # JSON takes at most six bytes for a byte of the tail
_QUIET_S = 0.1  # wait so long for more output after the script has ended
REPLACEMENT = b"***"
_MASKED_FROM_BYTES = 4  # shorter secrets would mask half of the output


@dataclass(frozen=True)
class ScriptSpec:
    """A script to run.

    `state` is the path prefix of `.proc` and `.exit`; `wake` is the agent's socket; `lent` the file
    of leased store credentials, which changes while the script runs.
    """

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
class ScriptPids:
    """The supervisor process and the script's process."""

    supervisor: Process
    program: Process


@dataclass(frozen=True)
class ScriptExit:
    """How a script ended: exit code (128 + number for a signal), last lines, duration in seconds,
    and the line that says why it failed, where one is known.

    `part` is a wire.FailedPart, "" for the script itself.
    """

    code: int
    tail: str
    seconds: float
    cause: str = ""
    part: str = ""


def read_pids(state: Path) -> ScriptPids | None:
    """Return None if the script was not started."""
    data = _read(state.with_suffix(".proc"))
    if data is None:
        return None
    return ScriptPids(Process(*data["keeper"]), Process(*data["program"]))


def read_exit(state: Path) -> ScriptExit | None:
    """Return None if the script has not ended."""
    data = _read(state.with_suffix(".exit"))
    return None if data is None else ScriptExit(**data)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None


class PreallocatedFile:
    """A private file whose space is allocated before it is needed, because memory may be full by
    then.

    It becomes visible with `put`. Raises OSError if there is no space.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._new = path, path.with_name(path.name + ".new")
        descriptor = os.open(self._new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._file = os.fdopen(descriptor, "wb")
        self._file.write(bytes(_RECORD_BYTES))
        self._file.flush()

    def put(self, data: Mapping[str, Any]) -> None:
        """Write the data and make the file visible."""
        with self._file as file:
            file.seek(0)
            file.write(json.dumps(data).encode())
            file.truncate()
        self._new.replace(self._path)


class SecretMask:
    """Replaces secrets in a stream of bytes, also those split between two reads."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets: list[bytes] = []
        self._held = b""
        self.add(secrets)

    def add(self, secrets: Iterable[str]) -> None:
        """Mask these too, from now on."""
        candidates = {secret.encode() for secret in secrets} | {*self._secrets}
        maskable = (secret for secret in candidates if len(secret) >= _MASKED_FROM_BYTES)
        self._secrets = sorted(maskable, key=len, reverse=True)

    def feed(self, data: bytes) -> bytes:
        """Return what can be shown now; the possible start of a secret is held back."""
        data = self._held + data
        for secret in self._secrets:
            data = data.replace(secret, REPLACEMENT)
        held = max((_overlap(data, secret) for secret in self._secrets), default=0)
        self._held = data[len(data) - held :]
        return data[: len(data) - held]

    def flush(self) -> bytes:
        held, self._held = self._held, b""
        return held


def _overlap(data: bytes, secret: bytes) -> int:
    """Length of the longest suffix of `data` that is a prefix of `secret`."""
    # Only where the first byte of the secret is: output may come in very many small pieces.
    start = data.find(secret[:1], max(0, len(data) - len(secret) + 1))
    while start >= 0:
        if secret.startswith(data[start:]):
            return len(data) - start
        start = data.find(secret[:1], start + 1)
    return 0


class _Output:
    """Copies a pipe to the rotated log with secrets masked, and remembers the last bytes."""

    def __init__(self, pipe: int, spec: ScriptSpec) -> None:
        self._pipe = pipe
        self._mask = SecretMask(spec.secrets)
        self._credentials_file, self._credentials_mtime_ns = spec.lent, dict[Path, int]()
        self._log = LogWriter(Path(spec.log), spec.log_limit_bytes)
        self._end = bytearray()
        self.open = True
        os.set_blocking(pipe, False)

    def pump(self) -> bool:
        """Copy what is available; False if nothing was."""
        try:
            data = os.read(self._pipe, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        self.open = bool(data)
        self._update_mask()
        self._write(self._mask.feed(data) if data else self._mask.flush())
        return True

    def _update_mask(self) -> None:
        """Add credentials that were leased since. Older ones stay masked."""
        if not self._credentials_file:
            return
        job_file = Path(self._credentials_file)  # the other stores' files are next to it
        for path in (job_file, *job_file.parent.glob(f"{job_file.name}-{'[0-9a-f]' * 16}")):
            with contextlib.suppress(OSError, ValueError):  # no credentials, or none any more
                at_ns = path.stat().st_mtime_ns
                if at_ns != self._credentials_mtime_ns.get(path):
                    self._mask.add(secrets_in(path.read_text()))
                    self._credentials_mtime_ns[path] = at_ns

    def tail(self) -> str:
        """Return the end of the output."""
        self._write(self._mask.flush())
        with contextlib.suppress(OSError):
            self._log.record_dropped()
        return self._end[-_SEARCH_BYTES:].decode("utf-8", "replace")

    def _write(self, data: bytes) -> None:
        self._log.write(data)
        self._end += data
        if len(self._end) > 2 * _SEARCH_BYTES:
            del self._end[:-_SEARCH_BYTES]


def supervise() -> int:
    """Read a spec from stdin, run it, and stay until its output is closed. Returns the exit
    code."""
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return 0  # the agent ended before it sent a spec
    spec = ScriptSpec(**json.loads(line))
    # Training also works without a subreaper.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # Not SIG_IGN, because the script would inherit it.
        signal.signal(number, lambda *_: None)
    state = Path(spec.state)
    pids_file = PreallocatedFile(state.with_suffix(".proc"))
    exit_file = PreallocatedFile(state.with_suffix(".exit"))
    started_s = time.monotonic()
    try:
        program = subprocess.Popen(
            list(spec.argv),
            cwd=spec.cwd,
            env=dict(spec.env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        text = f"{spec.argv[0]} cannot be started: {error}"
        failure = ScriptExit(127, text, 0.0, text, wire.FailedPart.AGENT.value)
        _record_exit(exit_file, failure, spec.wake)
        return 1
    _record_pids(pids_file, program.pid)
    _wake(spec.wake)
    assert program.stdout is not None  # noqa: S101 - a pipe was asked for
    output = _Output(program.stdout.fileno(), spec)
    _pump_while(program, output)
    code = program.returncode if program.returncode >= 0 else 128 - program.returncode
    seconds = round(time.monotonic() - started_s, 3)
    _record_exit(exit_file, script_exit(code, output.tail(), seconds), spec.wake)
    # Processes that a setup script left running may still write output.
    while output.open:
        _wait(program.stdout.fileno(), None, None)
        output.pump()
        _reap_orphans(program.pid)
    return 0


def script_exit(code: int, end: str, seconds: float) -> ScriptExit:
    """Return how a script ended, by the end of its output."""
    found = find_cause(end, code) if code else None
    cause = found.line if found and found.recognised else ""
    return ScriptExit(code, last_lines(end, _TAIL_BYTES), seconds, cause)


def _record_pids(record: PreallocatedFile, program: int) -> None:
    supervisor = identify(os.getpid())
    # The script may have ended already: a zombie has no start time here.
    started = identify(program) or Process(program, 0)
    assert supervisor is not None  # noqa: S101 - this very process
    record.put(
        {"keeper": [supervisor.pid, supervisor.started], "program": [started.pid, started.started]}
    )


def _record_exit(record: PreallocatedFile, ended: ScriptExit, wake: str) -> None:
    record.put(asdict(ended))
    _wake(wake)


def _pump_while(program: subprocess.Popen[bytes], output: _Output) -> None:
    """Copy output until the script has ended and its last output is in.

    Descendants that keep the pipe open are not waited for.
    """
    assert program.stdout is not None  # noqa: S101 - a pipe was asked for
    pipe, pidfd = program.stdout.fileno(), _open_pidfd(program.pid)
    while program.poll() is None:
        _wait(pipe if output.open else None, pidfd, None if pidfd is not None else 0.1)
        if output.open:
            output.pump()
        _reap_orphans(program.pid)
    if output.open:
        output.pump()  # the script's last output is in the pipe, however late this runs
    quiet_at = time.monotonic() + _QUIET_S
    while output.open and (remaining_s := quiet_at - time.monotonic()) > 0:
        _wait(pipe, None, remaining_s)
        output.pump()
    if pidfd is not None:
        os.close(pidfd)


def _reap_orphans(program: int) -> None:
    """Reap processes that became our children when their parents ended; never the script itself."""
    with contextlib.suppress(ChildProcessError):
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while (child := os.waitid(os.P_ALL, 0, flags)) is not None and child.si_pid != program:
            os.waitpid(child.si_pid, 0)


def _open_pidfd(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the process ends; None if unsupported."""
    try:
        return os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
    except OSError:
        return None


def _wait(pipe: int | None, pidfd: int | None, timeout_s: float | None) -> None:
    descriptors = [descriptor for descriptor in (pipe, pidfd) if descriptor is not None]
    with contextlib.suppress(InterruptedError):
        select.select(descriptors, [], [], timeout_s)


def _wake(path: str) -> None:
    """Notify the agent, which otherwise polls less often."""
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection,
    ):
        connection.settimeout(1.0)
        connection.connect(path)
        connection.sendall(b'{"wake":{}}\n')
