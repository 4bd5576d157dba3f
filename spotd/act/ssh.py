"""SSH to a machine whose host key is known beforehand: pinned key, one user key, own deadlines.

paramiko by itself detects neither a frozen peer nor a black hole, and several of its waits never
end. So every call here has its own deadline, and a call that exceeds it closes the socket, which
ends all waits on it.
"""

from __future__ import annotations

import base64
import errno
import io
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import paramiko

from spotd.act.remote_exec import CHUNK, MAX_OUTPUT, Result, converse

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["CHUNK", "MAX_OUTPUT", "Address", "Connection", "Result", "SshError", "connect"]

# SHA-1, MD5 and CBC have no place on a link whose both ends are ours.
DISABLED = {
    "ciphers": ["aes128-cbc", "aes192-cbc", "aes256-cbc", "3des-cbc"],
    "macs": ["hmac-sha1", "hmac-sha1-96", "hmac-md5", "hmac-md5-96"],
}
CONNECT_S = 15.0  # for TCP, key exchange and authentication together
PEER_TIMEOUT_MS = 20_000  # unacknowledged data for longer means a dead path (TCP_USER_TIMEOUT)
# paramiko's thread wakes this often to see whether it was closed. We shut the socket down, which
# wakes it at once, so it may sleep: at its own 0.1 s, 200 idle links cost 5 % of a core.
_IDLE_WAKE_S = 30.0
# After every 512 MiB keys are exchanged anew, behind the megabytes that a slow uplink still holds.
# With an end, because paramiko's own thread, which is to finish the exchange, may wait for it, too.
_REKEY_S = 60.0
# A peer that begins an exchange and does not finish it holds up whoever writes to it: on a stream
# that is followed this is the one thread that follows all.
_FOLLOW_REKEY_S = 1.0
# So does one that reads nothing. What we say on such a stream fits into the system's own buffer,
# unless the peer has us answer without end.
_FOLLOW_WRITE_S = 1.0
# Of what was given to a shared connection and has not left this machine yet. More only makes
# heartbeats wait behind packages.
_SHARED_BYTES = 128 << 10
_JOIN_S = 1.0  # for paramiko's thread to end once its socket is closed


class SshError(Exception):
    """Base of the errors of an SSH link."""


class SshUnreachableError(SshError):
    """No connection, or it broke."""


class SshAuthRefusedError(SshError):
    """The machine refuses the job's key: a wrong image, or a foreign machine."""


class HostKeyMismatchError(SshError):
    """Another host answers at the address. Never continue. Both values are fingerprints."""

    def __init__(self, text: str, found: str = "", pinned: str = "") -> None:
        super().__init__(text)
        self.found, self.pinned = found, pinned


class SshDeadlineError(SshError):
    """No answer in time; the connection was closed."""


@dataclass(frozen=True)
class Address:
    """A machine's address and its public host key in OpenSSH's one-line form."""

    host: str
    port: int
    user: str
    host_public_key: str

    def __str__(self) -> str:
        return f"{self.user}@{self.host}:{self.port}"


def load_private_key(text: str) -> paramiko.PKey:
    """An ed25519 key in OpenSSH form. Raises SshError, which does not quote it."""
    try:
        return paramiko.Ed25519Key.from_private_key(io.StringIO(text))
    except (ValueError, IndexError, paramiko.SSHException):
        raise SshError("the job's private key is not an ed25519 key in OpenSSH form") from None


def load_public_key(line: str) -> paramiko.PKey:
    """A key from its one-line form. Raises SshError."""
    try:
        kind, data = line.split()[:2]
        return paramiko.PKey.from_type_string(kind, base64.b64decode(data))
    except (ValueError, TypeError, paramiko.SSHException, paramiko.pkey.UnknownKeyType) as error:
        raise SshError(
            f"the pinned host key is not a public key ({type(error).__name__})"
        ) from None


class Transport(Protocol):
    """The bytes below a connection: a socket, or a channel through a jump host."""

    patience_s: float | None  # with a peer that reads nothing; None: without end

    def takes(self) -> bool:
        """Return whether a write would not block."""
        ...

    def settimeout(self, value: float | None, /) -> None: ...

    def shutdown(self, how: int, /) -> None: ...

    def close(self) -> None: ...


class _Socket(socket.socket):
    """A socket that gives up on a peer that reads nothing; paramiko retries after each time-out.

    It also keeps its file descriptor until the last call of another thread has returned. The system
    gives a free number to the next file, so a late write could go, for example, to a cloud's API.
    """

    patience_s: float | None = None

    def __init__(self, family: int, kind: int, proto: int, fileno: int) -> None:
        super().__init__(family, kind, proto, fileno)
        self._counting = threading.Lock()
        self._calls = 0
        self._given_up = False

    def close(self) -> None:
        with self._counting:
            self._given_up = True
            if self._calls:
                return
        super().close()

    @contextmanager
    def _call(self) -> Iterator[None]:
        with self._counting:
            if self._given_up:
                raise OSError(errno.EBADF, "the connection was closed")
            self._calls += 1
        try:
            yield
        finally:
            self._come_back()

    def _come_back(self) -> None:
        with self._counting:
            self._calls -= 1
            if self._given_up and not self._calls:
                super().close()

    def takes(self, within_s: float = 0.0) -> bool:
        poll = select.poll()
        poll.register(self, select.POLLOUT)
        return bool(poll.poll(within_s * 1000))

    def send(self, data: ReadableBuffer, flags: int = 0) -> int:
        if self.patience_s is not None and not self.takes(self.patience_s):
            raise ConnectionAbortedError("the peer reads nothing")
        with self._call():
            return super().send(data, flags)

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        with self._call():
            return super().recv(bufsize, flags)


class Connection:
    """One authenticated transport. Thread-safe, also `close`.

    No call on it continues after `end_s` (monotonic), whatever its own deadline.
    """

    def __init__(self, sock: Transport, transport: paramiko.Transport, end_s: float) -> None:
        self._sock = sock
        self._end_s = end_s
        self.transport = transport

    @property
    def open(self) -> bool:
        """Return False once it was closed or broke. True is no evidence about the peer."""
        return bool(self.transport.is_active())

    def takes(self) -> bool:
        """Return whether a write would not wait for the peer."""
        return self._sock.takes()

    def share(self, patience_s: float) -> None:
        """Prepare this connection for forwarded connections: none may wait for long behind the
        bytes of another, or for a peer that reads nothing for `patience_s`."""
        self._sock.patience_s = self.transport.clear_to_send_timeout = patience_s
        if isinstance(self._sock, _Socket) and hasattr(socket, "TCP_NOTSENT_LOWAT"):
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _SHARED_BYTES)

    def close(self) -> None:
        """Close, without a word to the peer: it may be frozen."""
        with suppress(OSError):  # the peer may have been faster
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes whoever waits on it
        self.transport.close()
        self._sock.close()

    def hang_up(self, channel: paramiko.Channel) -> None:
        """Close the connection, and then a channel of it that is waited on. Otherwise paramiko's
        thread could write into the channel's pipe after that was closed, and its number reused."""
        self.close()
        self.transport.join(_JOIN_S)
        channel.close()

    def run(
        self,
        command: str,
        stdin: Iterable[bytes] = (),
        deadline_s: float = 30.0,
        max_output: int = MAX_OUTPUT,
    ) -> Result:
        """Run a constant command to its end, with data on its stdin.

        The deadline counts for everything, the making of `stdin` included. Raises
        SshUnreachableError (also for more than `max_output` bytes of a stream) or SshDeadlineError.
        """
        with self.deadline(deadline_s):
            channel = self._start(command, deadline_s)
            try:
                result = converse(channel, stdin, max_output)
            except BaseException:
                self.hang_up(channel)
                raise
            channel.close()
        return result

    def open_channel(
        self, command: str, deadline_s: float, window_bytes: int | None = None
    ) -> paramiko.Channel:
        """A channel that runs a constant `command`; at most `window_bytes` wait in it unread. From
        here on no call of the connection waits long for a peer that exchanges keys or reads
        nothing.

        Raises SshUnreachableError, SshDeadlineError.
        """
        with self.deadline(deadline_s):
            channel = self._start(command, deadline_s, window_bytes)
        self.transport.clear_to_send_timeout = _FOLLOW_REKEY_S
        self._sock.patience_s = _FOLLOW_WRITE_S
        return channel

    def _start(
        self, command: str, deadline_s: float, window_bytes: int | None = None
    ) -> paramiko.Channel:
        # The time-out of `open_session` is by the wall clock; ours is the one that counts.
        channel = self.transport.open_session(window_size=window_bytes, timeout=10 * deadline_s)
        channel.exec_command(command)
        return channel

    @contextmanager
    def deadline(self, seconds: float) -> Iterator[None]:
        """Close the connection when the block takes too long; translate paramiko's errors."""
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            self.close()

        timer = threading.Timer(min(seconds, self._end_s - time.monotonic()), expire)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (paramiko.SSHException, EOFError, OSError) as error:
            if expired.is_set():
                raise SshDeadlineError(f"no answer within {seconds:.3g} s") from None
            why = str(error) or type(error).__name__
            raise SshUnreachableError(f"the connection broke: {why}") from None
        finally:
            timer.cancel()


Dial = Callable[[Address, float], Transport]


def connect(
    address: Address,
    private_key: str | paramiko.PKey,
    connect_s: float = CONNECT_S,
    *,
    deadline_s: float = threading.TIMEOUT_MAX,
    dial: Dial | None = None,
    speak: type[paramiko.Transport] = paramiko.Transport,
) -> Connection:
    """Connect to a peer; it must prove the key `address.host_public_key` before the login.

    It takes at most `connect_s`; `deadline_s` covers this and all later calls on it. `dial`
    connects to the peer if that is not a direct TCP connection; the transport on it is of class
    `speak`. Raises SshUnreachableError, SshAuthRefusedError, HostKeyMismatchError,
    SshDeadlineError, and the errors of `dial`.
    """
    end_s = time.monotonic() + deadline_s
    connect_s = min(connect_s, deadline_s)
    if connect_s <= 0:
        raise SshDeadlineError(f"{address}: no time was left to connect")
    connected_s = time.monotonic() + connect_s
    pinned = load_public_key(address.host_public_key)
    key = load_private_key(private_key) if isinstance(private_key, str) else private_key
    sock = (dial or open_socket)(address, connect_s)
    transport = speak(sock, disabled_algorithms=DISABLED)  # type: ignore[arg-type]
    transport.daemon = True
    transport.clear_to_send_timeout = _REKEY_S
    transport.banner_timeout = transport.handshake_timeout = connect_s + 1.0  # ours come first
    connection = Connection(sock, transport, end_s)
    try:
        _prove(transport, pinned, address, connected_s)
        _log_in(transport, key, address, connected_s)
    except (paramiko.SSHException, EOFError, OSError) as error:
        connection.close()
        raise SshUnreachableError(f"{address}: {error}") from None
    except BaseException:
        connection.close()
        raise
    sock.settimeout(_IDLE_WAKE_S)
    return connection


def _prove(
    transport: paramiko.Transport, pinned: paramiko.PKey, address: Address, end_s: float
) -> None:
    """Exchange keys and check the peer's host key."""
    # A machine may have keys of several kinds: ask for the kind that is pinned. The others stay,
    # so that a wrong machine is distinguished from one that speaks another SSH.
    options = transport.get_security_options()
    wanted = pinned.get_name().replace("ssh-rsa", "rsa-sha2-512")
    options.key_types = tuple(sorted(options.key_types, key=lambda kind: kind != wanted))
    done = threading.Event()
    transport.start_client(done)
    _await(done, transport, f"{address}: no SSH server answered", end_s)
    presented = transport.get_remote_server_key()
    if (presented.get_name(), presented.asbytes()) != (pinned.get_name(), pinned.asbytes()):
        raise HostKeyMismatchError(
            f"{address} shows the host key {presented.fingerprint}, not {pinned.fingerprint} that "
            "the machine was launched with: another machine has the address, or somebody "
            "intercepts the connection",
            str(presented.fingerprint),
            str(pinned.fingerprint),
        )


def _log_in(
    transport: paramiko.Transport, key: paramiko.PKey, address: Address, end_s: float
) -> None:
    done = threading.Event()
    transport.auth_publickey(address.user, key, done)
    _await(done, transport, f"{address}: the login was not answered", end_s)
    if not transport.is_authenticated():
        raise SshAuthRefusedError(
            f"{address} refuses the job's key: see that the image's cloud-init creates the user "
            f"{address.user!r} with the key it is given"
        )


def _await(done: threading.Event, transport: paramiko.Transport, what: str, end_s: float) -> None:
    """Wait until paramiko's thread has finished a step. Raises the error that stopped it."""
    if not done.wait(end_s - time.monotonic()):
        raise SshDeadlineError(f"{what} in time")
    if not transport.is_active():
        raise transport.get_exception() or EOFError("it hung up")


def open_socket(address: Address, connect_s: float) -> _Socket:
    """A TCP connection that notices a dead path. Raises SshUnreachableError, SshDeadlineError."""
    started_s = time.monotonic()
    try:
        plain = socket.create_connection((address.host, address.port), timeout=connect_s)
    except OSError as error:
        if isinstance(error, TimeoutError) and time.monotonic() - started_s >= connect_s * 0.9:
            raise SshDeadlineError(f"{address}: no connection within {connect_s:.3g} s") from None
        raise SshUnreachableError(f"{address}: {error}") from None
    sock = _Socket(plain.family, plain.type, plain.proto, plain.detach())
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else each small message waits
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, PEER_TIMEOUT_MS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    return sock
