"""Run a remote command from its first byte of stdin to its exit status, on one thread.

Both directions of a channel have a window, and either may fill while the other end waits for us, so
nothing here waits for one direction alone.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterable
from dataclasses import dataclass

import paramiko

MAX_OUTPUT = 1 << 20
CHUNK = 1 << 18
_WAIT_S = 0.5  # the longest sleep; whatever ends a conversation wakes us before
_WINDOW_S = 0.005  # between looks for room in the peer's window, which nothing announces
# After the command itself has ended, for output of its background processes to end too.
_LINGER_S = 2.0
_SETTLE_S = 0.5


@dataclass(frozen=True)
class Result:
    """The outcome of a command; `status` is -1 if a signal ended it."""

    status: int
    stdout: bytes
    stderr: bytes


def converse(channel: paramiko.Channel, stdin: Iterable[bytes], max_output: int) -> Result:
    """Feed and read a channel to its end. Has no deadline: the owner of the connection closes it.

    Raises EOFError when the connection ended first, OSError or SSHException when it broke, and
    SSHException for more than `max_output` bytes on stdout or stderr.
    """
    channel.setblocking(False)
    feeder = _Feeder(channel, stdin)
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLIN)
    out, err = bytearray(), bytearray()
    ended_s = 0.0
    while True:
        # Looked at before reading: what came before the end is read below.
        over = channel.closed or bool(channel.eof_received and channel.exit_status_ready())
        moved = feeder.step() | _drain(channel, out, err)
        if max(len(out), len(err)) > max_output:
            raise paramiko.SSHException(f"more than {max_output} bytes of output")
        if moved:
            continue
        if channel.exit_status_ready():
            ended_s = ended_s or time.monotonic()
            if over or time.monotonic() - ended_s > _LINGER_S:
                break
        wait_s = _WAIT_S if feeder.done else _WINDOW_S
        if channel.eof_received:  # its pipe is readable for ever now
            channel.status_event.wait(wait_s)
        else:
            poll.poll(wait_s * 1000)
    if channel.exit_status == -1:
        # No status came: a signal ended the command, or the connection broke, which closes its
        # channels a moment before it says so itself.
        transport = channel.get_transport()
        transport.join(_SETTLE_S)
        if not transport.is_active():
            raise EOFError("it ended before the command did")
    return Result(channel.exit_status, bytes(out), bytes(err))


class _Feeder:
    """Gives stdin to the command, as far as its window lets us."""

    def __init__(self, channel: paramiko.Channel, stdin: Iterable[bytes]) -> None:
        self._channel = channel
        self._source = iter(stdin)
        self._rest = memoryview(b"")
        self.done = False

    def step(self) -> bool:
        """Send a piece; True when something was sent."""
        if self.done:
            return False
        if not self._rest:
            data = next(self._source, None)
            if data is None:
                self.done = True
                self._channel.shutdown_write()
                return True
            self._rest = memoryview(data)
        try:
            sent = self._channel.send(bytes(self._rest[:CHUNK]))
        except TimeoutError:
            return False
        except OSError:
            sent = 0
        # A command that has ended reads no more; its exit status says whether that was right.
        self.done = sent == 0 and bool(self._rest)
        self._rest = self._rest[sent:]
        return sent > 0


def _drain(channel: paramiko.Channel, out: bytearray, err: bytearray) -> bool:
    moved = False
    if channel.recv_ready():
        out += channel.recv(CHUNK)
        moved = True
    if channel.recv_stderr_ready():
        err += channel.recv_stderr(CHUNK)
        moved = True
    return moved
