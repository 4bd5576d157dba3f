"""`spot-node follow`: journal, heartbeats and logs as one stream of lines, until nobody reads it.

It reads the files, so that it works when the agent is dead; heartbeats it only passes on, so that
they stop when the agent stops. When the agent ends, or none is there, so does the stream: whoever
follows is to know at once.
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
NO_AGENT_S = 3.0  # for an agent that is being started; and what is on disk is told in any case
BUSY_S = 0.1


class FollowError(NodeError):
    """There is nothing to follow."""


@dataclass
class _Stream:
    """Where one log was read up to, and a piece further on that was sent ahead of its turn."""

    offset: int
    ahead: tuple[int, int] = (0, 0)


@dataclass
class _Allowance:
    """A rate limit: what was not used in the last second is all that is left over."""

    monotonic: Callable[[], float]
    left_bytes: float = LOG_BYTES_PER_S
    at: float = field(init=False)

    def __post_init__(self) -> None:
        self.at = self.monotonic()

    def refill(self) -> int:
        now = self.monotonic()
        grown = self.left_bytes + (now - self.at) * LOG_BYTES_PER_S
        self.left_bytes, self.at = min(grown, LOG_BYTES_PER_S), now
        return int(self.left_bytes)


class Follower:
    """Writes to `out`; `offsets` says from which byte of each log on."""

    def __init__(
        self,
        places: AgentPaths,
        generation: int,
        after: int,
        offsets: Mapping[str, int],
        out: Callable[[bytes], None],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if not places.journal.exists():
            raise FollowError(f"no agent was started here ({places.folder}): `spot-node run` first")
        self._places = places
        self._generation = generation
        self._after = after
        self._out = out
        self._journal = JournalReader(places.journal, places.overflow, after)
        self._streams = {name: _Stream(offset) for name, offset in offsets.items()}
        self._allowance = _Allowance(monotonic)
        self._monotonic = monotonic
        self._agent: socket.socket | None = None
        self._heard = b""
        self._said = b""  # by the daemon, of a line that has not ended yet

    def run(self, stdin: int) -> None:
        """Until stdin is at its end, the agent ends or is not there, or `out` raises
        BrokenPipeError."""
        give_up_at = self._monotonic() + NO_AGENT_S
        try:
            while True:
                self._tell_journal()
                busy = self._tell_logs()
                self._dial()
                if self._agent is None and not busy and self._monotonic() >= give_up_at:
                    return
                sources: list[int | socket.socket] = [stdin]
                sources += [] if self._agent is None else [self._agent]
                ready = select.select(sources, [], [], BUSY_S if busy else IDLE_S)[0]
                if stdin in ready and not self._hand_on(os.read(stdin, 1 << 16)):
                    return
                if self._agent in ready and not self._listen():
                    self._tell_journal()
                    self._tell_logs()
                    return
        finally:
            self._hang_up()

    # --- journal and heartbeats

    def _tell_journal(self) -> None:
        for entry in self._journal.read():
            if entry.kind == wire.EXITED:  # the machine may go as soon as this is heard
                self._tell_tails()
            self._out(entry.to_line())
            if entry.kind == wire.NOTICE and entry.data.get("kind") != NoticeKind.REBALANCE.value:
                self._tell_tails()

    def _dial(self) -> None:
        if self._agent is not None:
            return
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            line.connect(str(self._places.control_socket))
            line.sendall(encode({"watch": {"after": self._after}}))
        except OSError:
            line.close()  # no agent now: asked again at the next turn
        else:
            line.setblocking(False)
            self._agent, self._heard = line, b""

    def _listen(self) -> bool:
        """Pass on what the agent says; False when it has ended."""
        assert self._agent is not None  # noqa: S101 - it has just become readable
        try:
            data = self._agent.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            return False
        *lines, self._heard = (self._heard + data).split(b"\n")
        beats = [body["beat"] for body in map(json.loads, lines) if "beat" in body]
        self._tell_journal()
        for beat in beats[-1:]:
            seq, at_us, step = beat["seq"], beat["at_us"], beat["step"]
            self._out(Heartbeat(seq, at_us, self._generation, step).to_line())
        return True

    def _hand_on(self, data: bytes) -> bool:
        """What the daemon says is for the agent, word for word; False at its end. Each on a line of
        its own: to an agent of the version before, a watcher that speaks has ended. What one that
        is not there misses, it is told again."""
        *lines, self._said = (self._said + data)[-MAX_LINE_BYTES:].split(b"\n")
        for line in lines:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
                agent.settimeout(IDLE_S)
                agent.connect(str(self._places.control_socket))
                agent.sendall(line + b"\n")
        return bool(data)

    def _hang_up(self) -> None:
        if self._agent is not None:
            self._agent.close()
            self._agent = None

    # --- logs

    def _tell_logs(self) -> bool:
        """Send what the rate allows; True when there is more."""
        allowed = self._allowance.refill()
        more = False
        for path in sorted(self._places.logs.glob("*.log")):
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
                self._tell_chunk(path.stem, offset, data)
                stream.offset = offset + len(data)
                allowed -= len(data)
            else:
                more = True
        self._allowance.left_bytes = allowed
        return more

    def _tell_tails(self) -> None:
        """The machine goes: the newest output first, whatever is still to be sent before it."""
        for path in sorted(self._places.logs.glob("*.log")):
            stream = self._streams.setdefault(path.stem, _Stream(0))
            reader = LogReader(path)
            end = reader.bounds()[1]
            offset, data = reader.read(max(stream.offset, end - TAIL_BYTES), TAIL_BYTES)
            if data:
                self._tell_chunk(path.stem, offset, data)
                stream.ahead = (offset, offset + len(data))

    def _tell_chunk(self, stream: str, offset: int, data: bytes) -> None:
        text = data.decode("latin-1")
        self._out(LogChunk(self._generation, stream, offset, text).to_line())


def read_request(stdin: int) -> dict[str, int]:
    """The first line of stdin: where the reader is in each log. Raises FollowError."""
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
    """An `out` that writes whole lines, unbuffered: what is told is on its way."""

    def write(line: bytes) -> None:
        view = memoryview(line)
        while view:
            view = view[os.write(descriptor, view) :]

    return write
