"""The training process's end of its line to the node agent.

The agent says what it wants as a level, the *flag*; we say what happened as messages. Both travel
as JSON lines over a unix socket. Training never waits for the agent: messages go into a bounded
queue that one thread empties, and a dead agent is dialled again until it is back.

Standard library only, Python >= 3.10.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .constants import CLAIM_NOW, MAX_LINE_BYTES

QUEUE_LINES = 10_000
REDIAL_S = 0.2
AT_EVERY_S = 1.0  # between words on how far this rank has come


@dataclass(frozen=True)
class Flag:
    """What the agent wants now. The deadlines are on our monotonic clock; None: none given."""

    save: int = 0  # how many saves were asked for since the start
    stop: bool = False
    deadline: float | None = None
    reason: str = ""
    claim: str = CLAIM_NOW
    claim_deadline: float = 0.0
    ranks: bool = False  # it wants to hear from each rank how far that has come
    notice: float | None = None  # when the machine goes, though it may train on until then
    mtbf_s: float = 0.0  # as the control box knows it now; 0: it has not said


class AgentClient:
    """A line to the agent at the unix socket `path`; with an empty `path`, a line to nobody."""

    def __init__(
        self,
        path: str,
        rank: int,
        *,
        flag: Flag = Flag(),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._hello = {"hello": {"rank": rank, "pid": os.getpid()}}
        self._monotonic = monotonic
        self._flag = flag
        self._heard = threading.Event()
        self._waiting: deque[bytes] = deque(maxlen=QUEUE_LINES)
        self._closing_at: float | None = None
        self._complaint = ""
        self._rank = rank
        self._at = self._told_at = 0  # steps done, and as the agent last heard
        self._told_s = float("-inf")
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_write.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)
        if path:
            self._thread.start()
        else:
            self._heard.set()

    @classmethod
    def connect(cls, env: Mapping[str, str], rank: int = 0) -> AgentClient:
        """The line that `SPOTD_SOCKET` names; unset, everything works and nobody listens.

        Until the agent speaks, HEAD is to be claimed as it said when it started us.
        """
        claim, until = env.get("SPOTD_CLAIM", CLAIM_NOW), env.get("SPOTD_CLAIM_UNTIL", "0")
        return cls(
            env.get("SPOTD_SOCKET", ""), rank, flag=Flag(claim=claim, claim_deadline=float(until))
        )

    @property
    def flag(self) -> Flag:
        """The newest word of the agent; before its first, what it started us with."""
        return self._flag

    def wait_flag(self, timeout_s: float) -> bool:
        """Wait for the agent's first word; False if it did not come."""
        return self._heard.wait(timeout_s)

    def claim_of(self) -> tuple[str, float]:
        """How HEAD is to be claimed, and the seconds until it may be taken; for a wait."""
        flag = self._flag
        return flag.claim, flag.claim_deadline - self._monotonic()

    def send(self, kind: str, data: Mapping[str, Any]) -> None:
        """Queue one journal entry. Never blocks; with the queue full the oldest entry is lost."""
        self._queue({"kind": kind, "data": dict(data)})

    def excuse(self, for_s: float) -> None:
        """Say that we live, and may be silent for `for_s`, in which we would seem to hang."""
        self._queue({"busy_s": for_s})

    def at(self, step: int) -> None:
        """This rank has done so many steps. Costs nothing: our thread tells an agent that wants to
        know, once in a while and as soon as no other step follows."""
        self._at = step

    def want_saver(self, argv: Sequence[str]) -> None:
        """Ask the agent to keep a saver beside us, started like this if none runs."""
        self._queue({"saver": {"argv": list(argv)}})

    def close(self, *, exit_code: int | None = None, timeout_s: float = 2.0) -> None:
        """Say how we end, wait until the queue is sent or `timeout_s` is over, and hang up."""
        if self._path:
            if exit_code is not None:
                self._queue({"exit": {**self._hello["hello"], "code": exit_code}})
            self._closing_at = self._monotonic() + timeout_s
            self._wake()
            self._thread.join(timeout_s + 1.0)
        self._wake_read.close()
        self._wake_write.close()

    def _queue(self, message: Mapping[str, Any]) -> None:
        if self._path:
            self._waiting.append(json.dumps(message, separators=(",", ":")).encode() + b"\n")
            self._wake()

    def _wake(self) -> None:
        # A full pipe already wakes the thread; a closed one has nobody to wake.
        with contextlib.suppress(BlockingIOError, OSError):
            self._wake_write.send(b"x")

    def _done(self) -> bool:
        closing_at = self._closing_at
        return closing_at is not None and (not self._waiting or self._monotonic() > closing_at)

    def _run(self) -> None:
        while True:
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
                    line.connect(self._path)
                    line.setblocking(False)
                    self._talk(line)
            except OSError as error:
                self._complain(f"no agent at {self._path}: {error}; training goes on")
            if self._done():
                return
            self._rest()

    def _rest(self) -> None:
        """Until the next dial: messages that come meanwhile are no reason to hurry."""
        until = self._monotonic() + REDIAL_S
        while self._closing_at is None and (left_s := until - self._monotonic()) > 0:
            if select.select([self._wake_read], [], [], left_s)[0]:
                self._wake_read.recv(4096)
        if self._closing_at is not None:
            time.sleep(0.02)

    def _talk(self, line: socket.socket) -> None:
        """Speak until the line breaks (OSError) or all is said. A half-sent message is kept."""
        heard = b""
        message = sending = json.dumps(self._hello).encode() + b"\n"
        self._told_at = 0  # this agent has heard nothing of it yet
        try:
            while sending or not self._done():
                if self._closing_at is not None and self._monotonic() > self._closing_at:
                    return
                self._tell_at()
                if not sending and self._waiting:
                    message = sending = self._waiting.popleft()
                readable, writable, _ = select.select(
                    [line, self._wake_read], [line] if sending else [], [], 0.5
                )
                if self._wake_read in readable:
                    self._wake_read.recv(4096)
                if writable:
                    sending = sending[line.send(sending) :]
                if line in readable:
                    heard = self._hear(heard + _receive(line))
        finally:
            if sending and b'"hello"' not in message[:9]:
                self._waiting.appendleft(message)

    def _tell_at(self) -> None:
        now, step = self._monotonic(), self._at
        if self._flag.ranks and step != self._told_at and now >= self._told_s + AT_EVERY_S:
            self._told_at, self._told_s = step, now
            self._queue({"at": {"rank": self._rank, "step": step}})

    def _hear(self, data: bytes) -> bytes:
        """Take the whole lines out of `data`; the rest comes back."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            try:
                body = json.loads(line)["flag"]
                now = self._monotonic()
                deadline_s, notice_s = body["deadline_s"], body.get("notice_s")
                self._flag = Flag(
                    save=int(body["save"]),
                    stop=bool(body["stop"]),
                    deadline=None if deadline_s is None else now + float(deadline_s),
                    reason=str(body["reason"]),
                    claim=str(body["claim"]),
                    claim_deadline=now + float(body["claim_deadline_s"]),
                    ranks=body.get("ranks") is True,
                    notice=None if notice_s is None else now + float(notice_s),
                    mtbf_s=float(body.get("mtbf_s") or 0),
                )
            except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
                raise ConnectionResetError(f"it does not speak our language: {error!r}") from None
            self._heard.set()
        if len(rest) > MAX_LINE_BYTES:
            raise ConnectionResetError("it sends a line without an end")
        return rest

    def _complain(self, text: str) -> None:
        if text != self._complaint:
            print(f"link: {text}", file=sys.stderr, flush=True)
        self._complaint = text


def _receive(line: socket.socket) -> bytes:
    data = line.recv(65536)
    if not data:
        raise ConnectionResetError("it hung up")
    return data
