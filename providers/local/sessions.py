"""Run one SSH session: a command on pipes, or a command or shell on a terminal.

As with any SSH server, a command without a terminal outlives its connection, the exit status is
sent when the command ends, and the channel closes at the end of its output.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO

import paramiko

from providers.local.reaper import Reaper

_CHUNK_BYTES = 32768
_SIGNAL_BASE = 128  # exit status of a command killed by a signal, as in shells
_NOT_FOUND = 127
_HANGUPS = 25  # attempts, because a shell may miss a SIGHUP that arrives just before it reads


@dataclass
class Terminal:
    """A pseudo terminal: TERM value, size, and the open `master` (-1 if closed)."""

    kind: str
    width: int
    height: int
    master: int = field(default=-1, repr=False)

    def resize(self, width: int, height: int) -> None:
        """Change the size, also while a program runs."""
        self.width, self.height = width, height
        if self.master >= 0:
            size = struct.pack("HHHH", height, width, 0, 0)
            fcntl.ioctl(self.master, termios.TIOCSWINSZ, size)


@dataclass(frozen=True)
class Session:
    """A command to run on a channel."""

    channel: paramiko.Channel
    argv: list[str]
    environment: Mapping[str, str]
    terminal: Terminal | None = None


def run_piped(session: Session, reaper: Reaper) -> None:
    """Run a command with its streams on the channel; return after the end of its output."""
    channel = session.channel
    try:
        process = reaper.spawn(
            session.argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=session.environment["HOME"],
            env=dict(session.environment),
            start_new_session=True,
        )
    except OSError as error:
        _report_start_failure(channel, error)
        return
    assert process.stdin  # noqa: S101  these three are for the type checker
    assert process.stdout  # noqa: S101
    assert process.stderr  # noqa: S101
    pumps = [
        threading.Thread(target=_pump, args=(process.stdout, channel.sendall), daemon=True),
        threading.Thread(target=_pump, args=(process.stderr, channel.sendall_stderr), daemon=True),
    ]
    for pump in pumps:
        pump.start()
    threading.Thread(target=_forward_input, args=(channel, process.stdin), daemon=True).start()
    _send_exit_status(channel, reaper.wait(process))
    for pump in pumps:
        pump.join()
    channel.close()


def run_terminal(session: Session, reaper: Reaper) -> None:
    """Run a command or shell on its own terminal. A hang-up ends it."""
    channel, terminal = session.channel, session.terminal
    assert terminal is not None  # noqa: S101  for the type checker
    terminal.master, slave = pty.openpty()
    terminal.resize(terminal.width, terminal.height)
    try:
        process = reaper.spawn(
            ["setsid", "--ctty", "--wait", *session.argv],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=session.environment["HOME"],
            env={**session.environment, "TERM": terminal.kind},
        )
    except OSError as error:
        os.close(slave)
        _report_start_failure(channel, error)
        return
    os.close(slave)
    master = open(terminal.master, "rb+", buffering=0)  # noqa: PTH123, SIM115  closed below
    pump = threading.Thread(target=_pump, args=(master, channel.sendall, False), daemon=True)
    pump.start()
    threading.Thread(
        target=_forward_terminal_input, args=(channel, master, process), daemon=True
    ).start()
    _send_exit_status(channel, reaper.wait(process))
    pump.join(1.0)  # a background job may keep the terminal open after the shell has ended
    terminal.master = -1
    master.close()
    channel.close()


def _pump(source: IO[bytes], send: Callable[[bytes], object], close: bool = True) -> None:
    """Copy a stream to the channel; without a client the writer gets a broken pipe."""
    # OSError: the client is gone, or the terminal ended (EIO).
    with contextlib.suppress(OSError, ValueError):
        while data := os.read(source.fileno(), _CHUNK_BYTES):
            send(data)
    if close:
        source.close()


def _forward_input(channel: paramiko.Channel, sink: IO[bytes]) -> None:
    """Copy the client's input to the program, and close the program's stdin at its end."""
    _copy_input(channel, sink)
    with contextlib.suppress(OSError):
        sink.close()


def _forward_terminal_input(
    channel: paramiko.Channel, master: IO[bytes], process: subprocess.Popen[bytes]
) -> None:
    """Copy the client's input to the terminal, and hang up when the client does."""
    _copy_input(channel, master)
    while not channel.closed and process.returncode is None:
        time.sleep(0.2)
    for _ in range(_HANGUPS):
        if process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGHUP)
        time.sleep(0.2)


def _copy_input(channel: paramiko.Channel, sink: IO[bytes]) -> None:
    # The program may have closed its input or ended; later input is dropped.
    with contextlib.suppress(OSError, ValueError):
        while data := channel.recv(_CHUNK_BYTES):
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(sink.fileno(), rest) :]


def _send_exit_status(channel: paramiko.Channel, code: int) -> None:
    # The client may have disconnected.
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        channel.send_exit_status(code if code >= 0 else _SIGNAL_BASE - code)


def _report_start_failure(channel: paramiko.Channel, error: OSError) -> None:
    print(f"ssh: cannot start: {error}", file=sys.stderr, flush=True)
    _send_exit_status(channel, _NOT_FOUND)
    channel.close()
