"""A jump host: the path to machines without a public address.

One connection to it serves all machines behind it, each by a channel that carries that machine's
SSH: the jump host sees ciphertext, never a key of a job. The connection is checked every few
seconds and made again when it does not live. A failure on the way to the machine is a `JumpError`:
nothing is known about the machine itself.
"""

from __future__ import annotations

import io
import threading
import time
from dataclasses import dataclass, field
from typing import cast

import paramiko
import structlog

from spotd.act.direct_tcpip import Forwarder, ForwardError, Tunnel
from spotd.act.ssh import (
    Address,
    Connection,
    HostKeyMismatchError,
    SshAuthRefusedError,
    SshDeadlineError,
    SshError,
    SshUnreachableError,
    connect,
)
from spotd.base.clock import Clock

log = structlog.get_logger(__name__)

CONNECT_S = 15.0  # to the jump host itself
WAIT_S = 3.0  # for a connection that just broke, or was not made yet
PING_EVERY_S = 5.0
PING_S = 5.0  # for its answer: a jump host that hangs is found out before a machine's time is over
FIRST_S, CAP_S = 0.5, 10.0  # pauses between tries while it cannot be reached
# A gap that is shorter keeps no machine from being heard in time: one whose connections break each
# minute would else hide for ever that a machine behind it is silent.
SHORT_S = 10.0
# A jump host that reads nothing any more. Whoever writes to a machine behind it waits as long.
_PATIENCE_S = 10.0
# One that forwards nothing is only found out by trying, and nobody tries without a machine.
REFUSED_S = 60.0


class JumpError(SshError):
    """The jump host does not let us through."""


@dataclass(frozen=True)
class JumpHost:
    """The jump host's address, how it proves itself, and the key to log in there."""

    address: Address
    private_key: str = field(repr=False)

    def __str__(self) -> str:
        return str(self.address)


def load_login_key(text: str) -> paramiko.PKey:
    """Load a private key of any secure kind. Raises ValueError, which does not quote it."""
    for kind in (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey):
        try:
            return kind.from_private_key(io.StringIO(text + "\n"))
        except paramiko.PasswordRequiredException:
            raise ValueError("the key has a passphrase, which spotd cannot enter") from None
        except (ValueError, IndexError, paramiko.SSHException):
            continue
    raise ValueError("is not a private key of the kinds ed25519, ecdsa or rsa")


def log_in(host: JumpHost, connect_s: float = CONNECT_S) -> tuple[Connection, Forwarder]:
    """Connect to the jump host itself. Raises JumpError, with the fix."""
    try:
        key = load_login_key(host.private_key)
        connection = connect(host.address, key, connect_s, speak=Forwarder)
    except HostKeyMismatchError as error:
        raise JumpError(
            f"it shows the host key {error.found}, and jump_host_key is {error.pinned}: somebody "
            "intercepts the connection, or the host was recreated; nothing was sent there. If it "
            "is yours, read its key on the machine itself (/etc/ssh/ssh_host_*_key.pub) and set it"
        ) from None
    except SshAuthRefusedError:
        raise JumpError(
            f"it refuses spotd's key {key.fingerprint}: put the public part into "
            f"~{host.address.user}/.ssh/authorized_keys there"
        ) from None
    except (SshUnreachableError, SshDeadlineError) as error:
        raise JumpError(str(error).removeprefix(f"{host.address}: ")) from None
    except (SshError, ValueError) as error:
        raise JumpError(str(error)) from None
    connection.share(_PATIENCE_S)
    return connection, cast("Forwarder", connection.transport)


def try_out(host: JumpHost) -> str:
    """Log in over a separate connection and forward one to its own SSH port; return the findings.

    Raises JumpError, with the fix.
    """
    connection, transport = log_in(host, CONNECT_S)
    try:
        transport.forward("127.0.0.1", 22, CONNECT_S).close()
    except ForwardError as error:
        if error.prohibited:
            raise JumpError(forbidden(host, "machines", str(error))) from None
    except SshError as error:
        raise JumpError(f"after the login: {error}") from None
    finally:
        connection.close()
    return f"{host} has its pinned key, accepts the login and forwards"


def forbidden(host: JumpHost, target: str, answer: str) -> str:
    """Return the fix for a jump host that does not forward."""
    return (
        f"it does not forward to {target} ({answer}): set AllowTcpForwarding to yes or local for "
        f"{host.address.user} in its sshd_config, let PermitOpen and the key's own options allow "
        "it, and reload sshd"
    )


class JumpConnection:
    """One jump host, with the thread that keeps its connection. Thread-safe."""

    def __init__(self, host: JumpHost, clock: Clock) -> None:
        self.host = host
        self._clock = clock
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._look = threading.Event()  # the keeper is to look now
        self._ending = threading.Event()
        self._held: tuple[Connection, Forwarder] | None = None
        self._error = ""  # of the last try, while there is no connection
        self._since_us = 0  # since when it lets us through
        self._down_s: float | None = time.monotonic()  # since when it does not
        self._lived_s = 0.0  # when its connection last showed that it lives
        self._refused: tuple[float, str] | None = None  # when it last forwarded nothing, and why

    def start(self) -> None:
        """Begin to keep the connection; again is nothing."""
        with self._changed:
            if self._thread is None and not self._ending.is_set():
                self._thread = threading.Thread(target=self._keep, name="jump", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Close the connection, and do not reopen it."""
        with self._changed:
            self._ending.set()
            held, self._held = self._held, None
            self._changed.notify_all()
        self._look.set()
        if held is not None:
            held[0].close()

    def dial(self, address: Address, limit_s: float) -> Tunnel:
        """Open a connection to `address` through it, within `limit_s`. Raises JumpError for
        problems of the jump host, SshUnreachableError and SshDeadlineError for the machine."""
        end_s = time.monotonic() + limit_s
        self.start()
        connection, transport = self._current(limit_s)
        try:
            left_s = max(end_s - time.monotonic(), 0.001)
            channel = transport.forward(address.host, address.port, left_s)
        except ForwardError as error:
            if error.prohibited:
                raise self._note_refused(f"{address.host}:{address.port}", str(error)) from None
            raise SshUnreachableError(f"{address}: from the jump host: {error}") from None
        except SshDeadlineError:
            if connection.open:
                raise SshDeadlineError(
                    f"{address}: the jump host had no connection within {limit_s:.3g} s"
                ) from None
            raise self._lost("it does not answer") from None
        except SshError as error:
            raise self._lost(str(error)) from None
        self._note_forwarded()
        return Tunnel(channel, connection)

    def since_us(self) -> int:
        """Since when it lets us through; now, while it does not."""
        with self._changed:
            through = self._open() is not None and self._refusal() is None
            return self._since_us if through else self._clock.now_us()

    def why(self, patience_s: float = 0.0) -> str:
        """Why it has not let us through for `patience_s` and longer, or ""."""
        with self._changed:
            refusal = self._refusal()
            if self._open() is not None:
                return refusal or ""
            down_s = 0.0 if self._down_s is None else time.monotonic() - self._down_s
            return (self._error or "it does not answer") if down_s >= patience_s else ""

    def _open(self) -> tuple[Connection, Forwarder] | None:
        held = self._held
        return held if held is not None and held[0].open else None

    def _refusal(self) -> str | None:
        if self._refused is None or time.monotonic() - self._refused[0] > REFUSED_S:
            return None
        return self._refused[1]

    def _note_refused(self, target: str, answer: str) -> JumpError:
        text = forbidden(self.host, target, answer)
        with self._changed:
            self._refused = (time.monotonic(), text)
        return JumpError(f"jump host {self.host}: {text}")

    def _note_forwarded(self) -> None:
        with self._changed:
            if self._refused is not None:
                self._refused, self._since_us = None, self._clock.now_us()

    def _lost(self, why: str) -> JumpError:
        self._look.set()
        return JumpError(f"jump host {self.host}: {why}")

    def _current(self, limit_s: float) -> tuple[Connection, Forwarder]:
        """Return the current connection. If it broke, wait a moment for the next one; if it could
        not be made, do not wait, because hundreds of machines must not hold threads. Raises
        JumpError."""
        with self._changed:
            if self._held is not None and self._open() is None:
                self._look.set()

            def settled() -> bool:
                return self._ending.is_set() or self._open() is not None or bool(self._error)

            self._changed.wait_for(settled, min(limit_s, WAIT_S))
            held = self._open()
            if held is not None:
                return held
            why = "it was taken out of the configuration" if self._ending.is_set() else self._error
        raise JumpError(f"jump host {self.host}: {why or 'it does not answer'}")

    # --- on the thread that keeps it

    def _keep(self) -> None:
        failures = 0
        while not self._ending.is_set():
            self._look.clear()
            try:
                held = self._open()
                if held is not None:
                    self._ping(held[0])
                if self._open() is None:
                    self._dial_anew()
                failures = 0
            except JumpError as error:
                failures += 1
                self._note_down(str(error))
            except Exception as error:
                log.exception(
                    "the connection to the jump host is not retained", jump=str(self.host)
                )
                failures += 1
                self._note_down(f"{type(error).__name__}: {error}")
            self._pause(failures)

    def _pause(self, failures: int) -> None:
        """Wait between two pings or tries.

        A thread that finds the connection broken ends a pause between pings, except at its
        beginning, because it may break each time. A pause between tries is never cut.
        """
        self._ending.wait(min(FIRST_S * float(1 << min(failures, 10)), CAP_S))
        if not failures:
            self._look.wait(PING_EVERY_S - FIRST_S)

    def _ping(self, connection: Connection) -> None:
        try:
            with connection.deadline(PING_S):
                connection.transport.global_request("keepalive@openssh.com", wait=True)
        except SshError as error:
            log.warning("the jump host does not answer", jump=str(self.host), error=str(error))
        else:
            self._lived_s = time.monotonic()

    def _dial_anew(self) -> None:
        with self._changed:
            gone, self._held = self._held, None
            if gone is not None:
                self._error, self._down_s = "", time.monotonic()
        if gone is not None:
            gone[0].close()
            log.warning("the connection to the jump host broke", jump=str(self.host))
        held = log_in(self.host)
        with self._changed:
            if self._ending.is_set():
                held[0].close()
                return
            now_s = time.monotonic()
            if self._refused is not None or now_s - self._lived_s > SHORT_S:
                self._since_us = self._clock.now_us()
            self._held, self._lived_s = held, now_s
            self._error, self._refused, self._down_s = "", None, None
            self._changed.notify_all()
        log.info("connected to the jump host", jump=str(self.host))

    def _note_down(self, error: str) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()
        log.info("the jump host cannot be used", jump=str(self.host), error=error)
