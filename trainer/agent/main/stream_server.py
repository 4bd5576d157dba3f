"""`spot-node follow`: journal, heartbeats and logs as one stream of lines until the reader leaves.

It reads the files, so it works when the agent is dead. Heartbeats are only forwarded, so they stop
when the agent stops. The stream ends when the agent ends or is missing, so that the reader learns
it at once.

The daemon may terminate the machine as soon as it reads how a script ended. Before that entry, the
rest of the output is sent without a limit of its rate, but not more than FETCHED_BYTES, and not
for longer than FETCHED_S.
"""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from providers.base import NoticeKind
from spotd import wire
from spotd.wire import (
    FETCHED_BYTES,
    FETCHED_S,
    MAX_LINE_BYTES,
    Heartbeat,
    JournalEntry,
    LogChunk,
    LogEnd,
    encode,
    whole_characters,
)
from trainer.agent.base.journal import JournalReader
from trainer.agent.base.paths import AgentPaths, NodeError, write_private
from trainer.agent.base.streams import LogReader

LOG_BYTES_PER_S = 64 << 10
CHUNK_BYTES = 16 << 10
TAIL_BYTES = 16 << 10
SLICE_BYTES = 64 << 10  # of the last output, between two heartbeats
BEFORE_DEADLINE_S = 2.0  # of a notice, the entry about the end is sent at the latest
NOTED_S = 1.0  # between two notes of what was sent
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
class _LastOutput:
    """The bounds within which the rest of the output is sent, and whether it all was."""

    until: float
    left_bytes: int = FETCHED_BYTES
    complete: bool = False


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
        self._entries: deque[JournalEntry] = deque()  # read, and not sent yet
        self._last_output: _LastOutput | None = None  # is being sent, before the first of these
        self._deadlines: dict[str, float] = {}  # by notice: when the machine goes
        self._noted_at = 0.0
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
                idle = not busy and self._last_output is None
                if self._agent is None and idle and self._monotonic() >= give_up_at:
                    return
                sources: list[int | socket.socket] = [stdin]
                sources += [] if self._agent is None else [self._agent]
                ready = select.select(sources, [], [], self._pause_s(busy=busy))[0]
                if stdin in ready and not self._forward_to_agent(os.read(stdin, 1 << 16)):
                    return
                if self._agent in ready and not self._forward_heartbeats():
                    self._send_rest()
                    return
        finally:
            self._disconnect()

    def _pause_s(self, *, busy: bool) -> float:
        if self._last_output is not None:
            return 0.0
        return BUSY_S if busy else IDLE_S

    def _send_rest(self) -> None:
        """Send what is left, after the agent has ended."""
        self._send_journal()
        self._send_logs()
        while self._last_output is not None:
            self._send_journal()
            self._send_logs()

    # --- journal and heartbeats

    def _send_journal(self) -> None:
        self._entries.extend(self._journal.read())
        while self._entries:
            entry = self._entries[0]
            if entry.ends_script and not self._last_output_sent():
                return
            self._out(self._entries.popleft().to_line())
            self._note_deadline(entry)
            if entry.kind == wire.NOTICE and entry.data.get("kind") in _TAKING:
                self._send_tails()

    def _note_deadline(self, entry: JournalEntry) -> None:
        notice_id = str(entry.data.get("notice_id"))
        if entry.kind == wire.NOTICE_WITHDRAWN:
            self._deadlines.pop(notice_id, None)
        remaining_s = entry.data.get("remaining_s")
        takes = entry.kind == wire.NOTICE and entry.data.get("kind") in _TAKING
        if takes and isinstance(remaining_s, (int, float)):
            past_s = max(time.time() - entry.at_us / 1e6, 0.0)
            self._deadlines[notice_id] = self._monotonic() + remaining_s - past_s

    def _last_output_sent(self) -> bool:
        """Return whether the end of the output was sent, or its bounds are reached."""
        now, last = self._monotonic(), self._last_output
        if last is None:
            deadline = min(self._deadlines.values(), default=float("inf")) - BEFORE_DEADLINE_S
            self._last_output = _LastOutput(until=min(now + FETCHED_S, deadline))
            self._send_tails(whole_lines=True)  # first: the machine may go at any moment
            return False
        if not last.complete and last.left_bytes > 0 and now < last.until:
            return False
        self._last_output = None
        self._send_ends()
        return True

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
        """Send what the rate limit, or the bound of the last output, allows; True if there is
        more."""
        last = self._last_output
        allowed = self._rate_limit.refill()
        if last is not None:
            allowed = min(SLICE_BYTES, last.left_bytes)
        left, more = allowed, False
        for path in sorted(self._paths.logs.glob("*.log")):
            stream, reader = self._stream(path), LogReader(path)
            while left > 0:
                begin, end = stream.ahead
                if begin <= stream.offset < end:
                    stream.offset = end
                length = min(left, CHUNK_BYTES)
                if stream.offset < begin:
                    length = min(length, begin - stream.offset)
                offset, data = _read(reader, stream.offset, length, cut=last is not None)
                if not data:
                    break
                if offset > stream.offset:  # what was before it is gone
                    offset, data = _from_line(offset, data)
                if last is not None and len(data) == length:  # it may be the last before a gap
                    whole = data.rfind(b"\n") + 1
                    if not whole and length < CHUNK_BYTES and length == left:
                        left, more = 0, True
                        break
                    data = data[: whole or length]
                self._send_chunk(path.stem, offset, data)
                stream.offset = offset + len(data)
                left -= len(data)
            else:
                more = True
        if last is None:
            self._rate_limit.available_bytes = left
        else:
            last.left_bytes -= allowed - left
            last.complete = not more
        self._note_sent()
        return more

    def _stream(self, path: Path) -> _Stream:
        return self._streams.setdefault(path.stem, _Stream(0))

    def _send_tails(self, *, whole_lines: bool = False) -> None:
        """Send the newest output first, before older output, because the machine is about to go.

        With `whole_lines`, it begins with a line if output before it is left out.
        """
        for path in sorted(self._paths.logs.glob("*.log")):
            stream, reader = self._stream(path), LogReader(path)
            end = reader.bounds()[1]
            offset, data = reader.read(max(stream.offset, end - TAIL_BYTES), TAIL_BYTES)
            if whole_lines and offset > stream.offset:
                offset, data = _from_line(offset, data)
            if data:
                self._send_chunk(path.stem, offset, data)
                stream.ahead = (offset, offset + len(data))

    def _send_ends(self) -> None:
        """Send where each stream ends. What was not sent before it is not sent any more."""
        for path in sorted(self._paths.logs.glob("*.log")):
            stream = self._stream(path)
            stream.offset = max(stream.offset, LogReader(path).bounds()[1])
            begin, end = _stored_range(self._paths.stored_log(path.stem))
            line = LogEnd(
                generation=self._generation,
                stream=path.stem,
                offset=stream.offset,
                begin=begin,
                end=end,
            )
            self._out(line.to_line())

    def _note_sent(self) -> None:
        """Note for the agent how much was sent, so that it knows how much will be left."""
        now = self._monotonic()
        if now < self._noted_at + NOTED_S:
            return
        self._noted_at = now
        sent = {name: stream.offset for name, stream in self._streams.items()}
        with suppress(OSError):
            write_private(self._paths.sent_logs, json.dumps(sent).encode())

    def _send_chunk(self, stream: str, offset: int, data: bytes) -> None:
        chunk = LogChunk(
            generation=self._generation, stream=stream, offset=offset, text=data.decode("latin-1")
        )
        self._out(chunk.to_line())


def _read(reader: LogReader, offset: int, length: int, *, cut: bool) -> tuple[int, bytes]:
    """Read up to `length` bytes, and unless `cut` whole characters only.

    A character that is not written completely yet is left for later.
    """
    offset, data = reader.read(offset, length)
    whole = len(data) if cut else whole_characters(data)
    if not whole and data:  # it may go on in the next file
        data += reader.read(offset + len(data), length)[1]
        whole = whole_characters(data)
    return offset, data[:whole]


def _from_line(offset: int, data: bytes) -> tuple[int, bytes]:
    """Leave out the rest of a line whose beginning is missing; a very long one stays."""
    start = data.find(b"\n", 0, -1) + 1
    return offset + start, data[start:]


def _stored_range(path: Path) -> tuple[int, int]:
    """Return which bytes of a stream are in the job's store; (0, 0) for none."""
    try:
        begin, end = json.loads(path.read_bytes())
        return int(begin), int(end)
    except (OSError, ValueError, TypeError):
        return 0, 0


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
