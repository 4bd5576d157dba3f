"""`spot-node follow`: journal, heartbeats and logs as one stream of lines until the reader leaves.

It reads the files, so it works when the agent is dead. Heartbeats are only forwarded, so they stop
when the agent stops. The stream ends when the agent ends or is missing, so that the reader learns
it at once.
"""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from providers.base import NoticeKind
from spotd import wire
from spotd.wire import MAX_LINE_BYTES, Heartbeat, LogChunk, encode
from trainer.agent.base.journal import JournalReader
from trainer.agent.base.paths import AgentPaths, NodeError
from trainer.agent.base.streams import LogReader

LOG_BYTES_PER_S = 64 << 10
CHUNK_BYTES = 16 << 10
TAIL_BYTES = 16 << 10
IDLE_S = 1.0
NO_AGENT_S = 3.0  # wait so long for an agent that is just starting
BUSY_S = 0.1

_TAKING = frozenset(kind.value for kind in NoticeKind if kind.takes_machine)


class FollowError(NodeError):
    """There is nothing to follow."""


@dataclass
class _Stream:
    """The offset up to which a log was sent, and a range further on that was sent early."""

    offset: int
    ahead: tuple[int, int] = (0, 0)


@dataclass
class _RateLimit:
    """A rate limit that saves up at most one second's allowance."""

    monotonic: Callable[[], float]
    available_bytes: float = LOG_BYTES_PER_S
    at: float = field(init=False)

    def __post_init__(self) -> None:
        self.at = self.monotonic()

    def refill(self) -> int:
        now = self.monotonic()
        refilled = self.available_bytes + (now - self.at) * LOG_BYTES_PER_S
        self.available_bytes, self.at = min(refilled, LOG_BYTES_PER_S), now
        return int(self.available_bytes)


class Follower:
    """Writes the stream to `out`; `offsets` are the log offsets to start from."""

    def __init__(
        self,
        paths: AgentPaths,
        generation: int,
        *,
        after: int,
        offsets: Mapping[str, int],
        out: Callable[[bytes], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if not paths.journal.exists():
            raise FollowError(f"no agent was started here ({paths.folder}): `spot-node run` first")
        self._paths = paths
        self._generation = generation
        self._after = after
        self._out = out
        self._journal = JournalReader(paths.journal, paths.overflow, after)
        self._streams = {name: _Stream(offset) for name, offset in offsets.items()}
        self._rate_limit = _RateLimit(monotonic)
        self._monotonic = monotonic
        self._agent: socket.socket | None = None
        self._agent_buffer = b""
        self._daemon_buffer = b""  # an incomplete line from the daemon

    def run(self, stdin: int) -> None:
        """Stream until stdin ends, the agent ends or is missing, or `out` raises
        BrokenPipeError."""
        give_up_at = self._monotonic() + NO_AGENT_S
        try:
            while True:
                self._send_journal()
                busy = self._send_logs()
                self._connect()
                if self._agent is None and not busy and self._monotonic() >= give_up_at:
                    return
                sources: list[int | socket.socket] = [stdin]
                sources += [] if self._agent is None else [self._agent]
                ready = select.select(sources, [], [], BUSY_S if busy else IDLE_S)[0]
                if stdin in ready and not self._forward_to_agent(os.read(stdin, 1 << 16)):
                    return
                if self._agent in ready and not self._forward_heartbeats():
                    self._send_journal()
                    self._send_logs()
                    return
        finally:
            self._disconnect()

    # --- journal and heartbeats

    def _send_journal(self) -> None:
        for entry in self._journal.read():
            if entry.kind == wire.EXITED:  # the machine may be ended as soon as this is read
                self._send_tails()
            self._out(entry.to_line())
            if entry.kind == wire.NOTICE and entry.data.get("kind") in _TAKING:
                self._send_tails()

    def _connect(self) -> None:
        if self._agent is not None:
            return
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(str(self._paths.control_socket))
            connection.sendall(encode({"watch": {"after": self._after}}))
        except OSError:
            connection.close()  # no agent now: tried again in the next iteration
        else:
            connection.setblocking(False)
            self._agent, self._agent_buffer = connection, b""

    def _forward_heartbeats(self) -> bool:
        """Forward the agent's newest heartbeat; False if the agent has ended."""
        assert self._agent is not None  # noqa: S101 - it has just become readable
        try:
            data = self._agent.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            return False
        *lines, self._agent_buffer = (self._agent_buffer + data).split(b"\n")
        beats = [body["beat"] for body in map(json.loads, lines) if "beat" in body]
        self._send_journal()
        for beat in beats[-1:]:
            heartbeat = Heartbeat(
                seq=beat["seq"],
                at_us=beat["at_us"],
                generation=self._generation,
                step=beat["step"],
            )
            self._out(heartbeat.to_line())
        return True

    def _forward_to_agent(self, data: bytes) -> bool:
        """Forward the daemon's lines to the agent unchanged; False at the end of stdin.

        Each line has its own connection, because an older agent takes a second line from a watcher
        as its end. Lines that no agent receives are lost; the daemon sends them again.
        """
        *lines, self._daemon_buffer = (self._daemon_buffer + data)[-MAX_LINE_BYTES:].split(b"\n")
        for line in lines:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
                agent.settimeout(IDLE_S)
                agent.connect(str(self._paths.control_socket))
                agent.sendall(line + b"\n")
        return bool(data)

    def _disconnect(self) -> None:
        if self._agent is not None:
            self._agent.close()
            self._agent = None

    # --- logs

    def _send_logs(self) -> bool:
        """Send what the rate limit allows; True if there is more."""
        allowed = self._rate_limit.refill()
        more = False
        for path in sorted(self._paths.logs.glob("*.log")):
            stream = self._streams.setdefault(path.stem, _Stream(0))
            reader = LogReader(path)
            while allowed > 0:
                begin, end = stream.ahead
                if begin <= stream.offset < end:
                    stream.offset = end
                length = min(allowed, CHUNK_BYTES)
                if stream.offset < begin:
                    length = min(length, begin - stream.offset)
                offset, data = reader.read(stream.offset, length)
                if not data:
                    break
                self._send_chunk(path.stem, offset, data)
                stream.offset = offset + len(data)
                allowed -= len(data)
            else:
                more = True
        self._rate_limit.available_bytes = allowed
        return more

    def _send_tails(self) -> None:
        """Send the newest output first, before older output, because the machine is about to go."""
        for path in sorted(self._paths.logs.glob("*.log")):
            stream = self._streams.setdefault(path.stem, _Stream(0))
            reader = LogReader(path)
            end = reader.bounds()[1]
            offset, data = reader.read(max(stream.offset, end - TAIL_BYTES), TAIL_BYTES)
            if data:
                self._send_chunk(path.stem, offset, data)
                stream.ahead = (offset, offset + len(data))

    def _send_chunk(self, stream: str, offset: int, data: bytes) -> None:
        chunk = LogChunk(
            generation=self._generation, stream=stream, offset=offset, text=data.decode("latin-1")
        )
        self._out(chunk.to_line())


def read_request(stdin: int) -> dict[str, int]:
    """Read the first line of stdin: the reader's offset in each log. Raises FollowError."""
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(stdin, 1)
        if not data:
            raise FollowError('stdin ended before a line like {"logs": {"rank0": 0}}')
        line += data
    try:
        logs: Any = json.loads(line)["logs"]
        return {str(name): int(offset) for name, offset in logs.items()}
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError):
        raise FollowError('the first line of stdin is not like {"logs": {"rank0": 0}}') from None


def write_all(descriptor: int) -> Callable[[bytes], None]:
    """Return an `out` that writes whole lines without buffering."""

    def write(line: bytes) -> None:
        view = memoryview(line)
        while view:
            view = view[os.write(descriptor, view) :]

    return write
