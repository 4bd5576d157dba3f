"""Connections that a peer forwards (SSH direct-tcpip), each carrying another SSH.

paramiko reports a refusal to whichever thread asks first, waits by the wall clock, and forgets a
channel that opens after its waiter left, which the peer then keeps for ever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import paramiko
from paramiko.common import cMSG_CHANNEL_CLOSE

from spotd.act.ssh import Connection, SshDeadlineError, SshError, SshUnreachableError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_PROHIBITED = 1  # SSH_OPEN_ADMINISTRATIVELY_PROHIBITED
_WINDOW_S = 0.005  # between looks for room in the peer's window, which nothing announces


class ForwardError(SshError):
    """The peer did not make the connection; `prohibited`: it makes none."""

    def __init__(self, text: str, *, prohibited: bool) -> None:
        super().__init__(text)
        self.prohibited = prohibited


class _PendingOpen:
    """A channel that a thread waits for."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.refusal: ForwardError | None = None
        self.late = False


class Forwarder(paramiko.Transport):
    """A transport whose peer forwards connections."""

    _channels: paramiko.transport.ChannelMap

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self._mine = threading.local()  # the opening of a thread
        self._openings: dict[int, _PendingOpen] = {}
        super().__init__(*arguments, **more)

    def forward(self, host: str, port: int, limit_s: float) -> paramiko.Channel:
        """Open a channel to `host`, as the peer resolves it.

        Raises ForwardError with the peer's reason, SshDeadlineError if it does not answer, and
        SshUnreachableError if it is gone.
        """
        opening = self._mine.opening = _PendingOpen()
        timer = threading.Timer(limit_s, self._give_up, (opening,))
        timer.daemon = True
        timer.start()
        try:
            # Its own time-out goes by the wall clock; ours is the one that counts.
            where = (host, port), ("127.0.0.1", 0)
            return self.open_channel("direct-tcpip", *where, timeout=10 * limit_s)
        except (paramiko.SSHException, EOFError, OSError) as error:
            if opening.refusal is not None:
                raise opening.refusal from None
            if opening.late and self.is_active():
                raise SshDeadlineError(f"no connection within {limit_s:.3g} s") from None
            raise SshUnreachableError(str(error) or "it hung up") from None
        finally:
            timer.cancel()
            self._mine.opening = None
            self._openings.pop(-1 if opening.number is None else opening.number, None)

    def _give_up(self, opening: _PendingOpen) -> None:
        opening.late = True
        with self.lock:
            if opening.number is None:
                return  # it was not even sent: the connection is stuck, and ends by itself
            self._channels.delete(opening.number)
            event = self.channel_events.pop(opening.number, None)
        if event is not None:
            event.set()

    def _next_channel(self) -> int:
        number = int(super()._next_channel())  # type: ignore[misc]
        opening = getattr(self._mine, "opening", None)
        if opening is not None:
            opening.number = number
            self._openings[number] = opening
        return number

    def _parse_channel_open_failure(self, message: paramiko.Message) -> None:
        number, reason, text = message.get_int(), message.get_int(), message.get_text()
        opening = self._openings.get(number)
        if opening is not None:
            opening.refusal = ForwardError(text[:200], prohibited=reason == _PROHIBITED)
        message.rewind()
        super()._parse_channel_open_failure(message)  # type: ignore[misc]

    def _parse_channel_open_success(self, message: paramiko.Message) -> None:
        ours, theirs = message.get_int(), message.get_int()
        if self._channels.get(ours) is None:
            close = paramiko.Message()
            close.add_byte(cMSG_CHANNEL_CLOSE)
            close.add_int(theirs)
            self._send_message(close)  # type: ignore[attr-defined]
            return
        message.rewind()
        super()._parse_channel_open_success(message)  # type: ignore[misc]


class Tunnel:
    """A channel as the line of another SSH, over the connection `carrier`."""

    def __init__(self, channel: paramiko.Channel, carrier: Connection) -> None:
        self.patience_s: float | None = None  # see act.ssh.Line
        self._channel = channel
        self._carrier = carrier

    def takes(self) -> bool:
        return self._channel.send_ready() and self._carrier.takes()

    def send(self, data: ReadableBuffer) -> int:
        """Send as a socket does; raises ConnectionAbortedError after too long a wait."""
        if self.patience_s is not None:
            end_s = time.monotonic() + self.patience_s
            while not self.takes():
                if time.monotonic() > end_s:
                    raise ConnectionAbortedError("the peer reads nothing")
                time.sleep(_WINDOW_S)
        with self._whole():
            return self._channel.send(bytes(data))

    def recv(self, size: int) -> bytes:
        """Receive as a socket does."""
        with self._whole():  # it may have to say that there is room for more
            return self._channel.recv(size)

    def settimeout(self, value: float | None, /) -> None:
        self._channel.settimeout(value)

    def shutdown(self, _how: int, /) -> None:
        """Wake every thread that waits on it."""
        self.close()

    def close(self) -> None:
        with suppress(EOFError, OSError, paramiko.SSHException), self._whole():
            self._channel.close()

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Close the tunnel after an incomplete write, which may have cut a packet in half."""
        try:
            yield
        except (EOFError, paramiko.SSHException):
            self._carrier.close()
            raise

    @property
    def _closed(self) -> bool:
        return bool(self._channel.closed)  # paramiko asks its socket
