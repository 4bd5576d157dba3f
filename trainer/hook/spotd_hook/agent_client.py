"""The training process's connection to the node agent.

The agent sends its present requests as a level, the *flag*; the process sends events as messages.
Both are JSON lines over a unix socket. Training never waits for the agent: messages go into a
bounded queue that one thread empties, and a lost connection is opened again until it works.

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

MAX_QUEUED_LINES = 10_000
RECONNECT_S = 0.2
STEP_REPORT_EVERY_S = 1.0  # between reports of this rank's step


@dataclass(frozen=True)
class Flag:
    """The agent's present requests. Deadlines are in our monotonic seconds; None: none given."""

    saves_requested: int = 0  # number of saves requested since the start
    stop: bool = False
    deadline: float | None = None
    reason: str = ""
    claim: str = CLAIM_NOW
    claim_deadline: float = 0.0
    wants_steps: bool = False  # the agent wants each rank's step
    notice_deadline: float | None = None  # end of the machine; training may continue
    mtbf_s: float = 0.0  # the control box's newest estimate; 0: unknown


class AgentClient:
    """A connection to the agent at the unix socket `path`; with an empty `path` nothing is sent."""

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
        self._flag_received = threading.Event()
        self._outbox: deque[bytes] = deque(maxlen=MAX_QUEUED_LINES)
        self._close_by_s: float | None = None
        self._last_warning = ""
        self._rank = rank
        self._step = self._reported_step = 0  # steps done, and as last reported
        self._reported_at_s = float("-inf")
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_write.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)
        if path:
            self._thread.start()
        else:
            self._flag_received.set()

    @classmethod
    def connect(cls, env: Mapping[str, str], rank: int = 0) -> AgentClient:
        """Return a client for the socket in `SPOTD_SOCKET`; if it is not set, nothing is sent.

        Until the agent sends a flag, the claim mode is the one it set in the environment.
        """
        claim, until_s = env.get("SPOTD_CLAIM", CLAIM_NOW), env.get("SPOTD_CLAIM_UNTIL", "0")
        return cls(
            env.get("SPOTD_SOCKET", ""), rank, flag=Flag(claim=claim, claim_deadline=float(until_s))
        )

    @property
    def flag(self) -> Flag:
        """The newest flag of the agent; before the first one, the flag from the environment."""
        return self._flag

    def wait_flag(self, timeout_s: float) -> bool:
        """Wait for the agent's first flag; False if none came."""
        return self._flag_received.wait(timeout_s)

    def current_claim(self) -> tuple[str, float]:
        """Return how HEAD is to be claimed, and the seconds until it may be taken."""
        flag = self._flag
        return flag.claim, flag.claim_deadline - self._monotonic()

    def send(self, kind: str, data: Mapping[str, Any]) -> None:
        """Queue one journal entry. Never blocks; a full queue drops its oldest entry."""
        self._queue({"kind": kind, "data": dict(data)})

    def report_busy(self, for_s: float) -> None:
        """Tell the agent that a pause of `for_s` without a step is not a hang."""
        self._queue({"busy_s": for_s})

    def report_idle(self) -> None:
        """Tell the agent that this rank's training has ended, and steps are not expected."""
        self._queue({"idle": {"rank": self._rank}})

    def set_step(self, step: int) -> None:
        """Set the number of steps that this rank has done.

        The client's thread reports it from time to time, if the agent wants to know.
        """
        self._step = step

    def request_saver(self, argv: Sequence[str]) -> None:
        """Ask the agent to run a saver beside this process, with `argv` if none is running."""
        self._queue({"saver": {"argv": list(argv)}})

    def close(self, *, exit_code: int | None = None, timeout_s: float = 2.0) -> None:
        """Send the exit code and the rest of the queue within `timeout_s`, then disconnect."""
        if self._path:
            if exit_code is not None:
                self._queue({"exit": {**self._hello["hello"], "code": exit_code}})
            self._close_by_s = self._monotonic() + timeout_s
            self._wake()
            self._thread.join(timeout_s + 1.0)
        self._wake_read.close()
        self._wake_write.close()

    def _queue(self, message: Mapping[str, Any]) -> None:
        if self._path:
            self._outbox.append(json.dumps(message, separators=(",", ":")).encode() + b"\n")
            self._wake()

    def _wake(self) -> None:
        # A full pipe already wakes the thread; a closed one has nobody to wake.
        with contextlib.suppress(BlockingIOError, OSError):
            self._wake_write.send(b"x")

    def _done(self) -> bool:
        close_by_s = self._close_by_s
        return close_by_s is not None and (not self._outbox or self._monotonic() > close_by_s)

    def _run(self) -> None:
        while True:
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                    sock.connect(self._path)
                    sock.setblocking(False)
                    self._exchange(sock)
            except OSError as error:
                self._warn_once(f"no agent at {self._path}: {error}; training continues")
            if self._done():
                return
            self._wait_before_reconnect()

    def _wait_before_reconnect(self) -> None:
        """Wait before the next attempt; messages queued meanwhile do not shorten the wait."""
        until_s = self._monotonic() + RECONNECT_S
        while self._close_by_s is None and (remaining_s := until_s - self._monotonic()) > 0:
            if select.select([self._wake_read], [], [], remaining_s)[0]:
                self._wake_read.recv(4096)
        if self._close_by_s is not None:
            time.sleep(0.02)

    def _exchange(self, sock: socket.socket) -> None:
        """Send and receive until the connection breaks (OSError) or everything is sent.

        A message that was sent in part is sent again.
        """
        received = b""
        message = sending = json.dumps(self._hello).encode() + b"\n"
        self._reported_step = 0  # a new agent knows no step
        try:
            while sending or not self._done():
                if self._close_by_s is not None and self._monotonic() > self._close_by_s:
                    return
                self._report_step()
                if not sending and self._outbox:
                    message = sending = self._outbox.popleft()
                readable, writable, _ = select.select(
                    [sock, self._wake_read], [sock] if sending else [], [], 0.5
                )
                if self._wake_read in readable:
                    self._wake_read.recv(4096)
                if writable:
                    sending = sending[sock.send(sending) :]
                if sock in readable:
                    received = self._read_flags(received + _receive(sock))
        finally:
            if sending and b'"hello"' not in message[:9]:
                self._outbox.appendleft(message)

    def _report_step(self) -> None:
        now, step = self._monotonic(), self._step
        if (
            self._flag.wants_steps
            and step != self._reported_step
            and now >= self._reported_at_s + STEP_REPORT_EVERY_S
        ):
            self._reported_step, self._reported_at_s = step, now
            self._queue({"at": {"rank": self._rank, "step": step}})

    def _read_flags(self, data: bytes) -> bytes:
        """Handle the complete lines in `data` and return the rest."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            try:
                body = json.loads(line)["flag"]
                now = self._monotonic()
                deadline_s, notice_s = body["deadline_s"], body.get("notice_s")
                self._flag = Flag(
                    saves_requested=int(body["save"]),
                    stop=bool(body["stop"]),
                    deadline=None if deadline_s is None else now + float(deadline_s),
                    reason=str(body["reason"]),
                    claim=str(body["claim"]),
                    claim_deadline=now + float(body["claim_deadline_s"]),
                    wants_steps=body.get("ranks") is True,
                    notice_deadline=None if notice_s is None else now + float(notice_s),
                    mtbf_s=float(body.get("mtbf_s") or 0),
                )
            except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
                raise ConnectionResetError(f"it sent an invalid flag: {error!r}") from None
            self._flag_received.set()
        if len(rest) > MAX_LINE_BYTES:
            raise ConnectionResetError(
                f"it sent more than {MAX_LINE_BYTES} bytes without a newline"
            )
        return rest

    def _warn_once(self, message: str) -> None:
        if message != self._last_warning:
            print(f"spotd agent: {message}", file=sys.stderr, flush=True)
        self._last_warning = message


def _receive(sock: socket.socket) -> bytes:
    data = sock.recv(65536)
    if not data:
        raise ConnectionResetError("it closed the connection")
    return data
