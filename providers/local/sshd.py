"""A machine's SSH server: public-key login, commands and shells as the user who runs the cloud.

Not supported: forwarding, SFTP, and signal requests.
"""

from __future__ import annotations

import io
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import paramiko
from paramiko.common import (
    AUTH_FAILED,
    AUTH_SUCCESSFUL,
    MSG_CHANNEL_REQUEST,
    OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED,
    OPEN_SUCCEEDED,
)

from providers.local.reaper import Reaper
from providers.local.sessions import Session, Terminal, run_piped, run_terminal

_BACKLOG = 128
_ACCEPTED_ENV = ("LANG", "LC_")
_RECHECK_S = 1.0  # a connection whose key was removed is closed within this time


@dataclass(frozen=True)
class Login:
    """The authorized user and key, and the host key (OpenSSH private key format)."""

    user: str
    public_key: str
    host_private_key: str = field(repr=False)

    @classmethod
    def from_data(cls, data: Mapping[str, object]) -> Login:
        """Parse the JSON of a launch. Raises KeyError."""
        return cls(str(data["user"]), str(data["public_key"]), str(data["host_private_key"]))


def load_private_key(text: str) -> paramiko.PKey:
    """Load an Ed25519, ECDSA or RSA key in OpenSSH format. Raises ValueError."""
    for kind in (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey):
        try:
            return kind.from_private_key(io.StringIO(text))
        except (paramiko.SSHException, ValueError):
            continue
    raise ValueError("the host key is not an OpenSSH private key")


class SshServer:
    """Serves SSH on a bound socket that is not listening yet."""

    def __init__(
        self,
        bound: socket.socket,
        login: Login,
        environment: Mapping[str, str],
        reaper: Reaper,
        on_exec: Callable[[], None],
    ) -> None:
        self._socket = bound
        self._login = login
        self._host_key = load_private_key(login.host_private_key)
        self._environment = environment
        self._reaper = reaper
        self._on_exec = on_exec
        self._used = threading.Event()

    def start(self) -> None:
        """Listen and serve on daemon threads."""
        self._socket.listen(_BACKLOG)
        threading.Thread(target=self._accept, name="ssh", daemon=True).start()

    def report_command(self) -> None:
        """Report the machine's first command; later calls do nothing."""
        if not self._used.is_set():
            self._used.set()
            self._on_exec()

    def _accept(self) -> None:
        while True:
            connection, _address = self._socket.accept()
            threading.Thread(target=self._serve_connection, args=(connection,), daemon=True).start()

    def _serve_connection(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport = _Transport(connection)
        transport.daemon = True
        transport.add_server_key(self._host_key)
        try:
            transport.start_server(server=_Interface(self, self._login, self._environment))
        except (paramiko.SSHException, EOFError, OSError) as error:
            print(f"ssh: no session: {error}", file=sys.stderr, flush=True)
            transport.close()
            return
        # Sessions run from _Interface. Keep a reference: paramiko closes an unreferenced channel.
        channels: list[paramiko.Channel] = []
        interface = transport.server_object
        while transport.is_active():
            opened = transport.accept(_RECHECK_S)
            if isinstance(interface, _Interface) and not interface.is_authorized():
                transport.close()
            channels = [
                channel for channel in [*channels, opened] if channel and not channel.closed
            ]

    def run(self, session: Session) -> None:
        """Run one command or shell on a new thread."""
        run_session = run_terminal if session.terminal else run_piped
        threading.Thread(target=run_session, args=(session, self._reaper), daemon=True).start()


def _answer_then_run(channel: paramiko.Channel, request: paramiko.Message) -> None:
    """Answer the request, then start the command: a quick one would close the channel before."""
    channel._handle_request(request)  # type: ignore[attr-defined]  # noqa: SLF001
    interface = channel.get_transport().server_object
    if isinstance(interface, _Interface):
        interface.run_requested(channel)


class _Transport(paramiko.Transport):
    _channel_handler_table = {  # noqa: RUF012  the base class's
        **paramiko.Transport._channel_handler_table,  # type: ignore[attr-defined]  # noqa: SLF001
        MSG_CHANNEL_REQUEST: _answer_then_run,
    }


class _Interface(paramiko.ServerInterface):
    """Authorizes requests of one connection. Called on paramiko's thread, so it must not block."""

    def __init__(self, server: SshServer, login: Login, environment: Mapping[str, str]) -> None:
        self._server = server
        self._login = login
        self._environment = environment
        self._other_key: str | None = None  # the key, unless it is the one of the launch
        self._env: dict[int, dict[str, str]] = {}
        self._terminals: dict[int, Terminal] = {}
        self._sessions: dict[int, Session] = {}

    def run_requested(self, channel: paramiko.Channel) -> None:
        """Run the command or shell requested on this channel, if any."""
        session = self._sessions.pop(channel.get_id(), None)
        if session is not None:
            self._server.run(session)

    def get_allowed_auths(self, username: str) -> str:  # noqa: ARG002
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        known = self._login.public_key.split()[:2]
        offered = [key.get_name(), key.get_base64()]
        if username != self._login.user:
            return AUTH_FAILED
        self._other_key = None if offered == known else " ".join(offered)
        return AUTH_SUCCESSFUL if self.is_authorized() else AUTH_FAILED

    def is_authorized(self) -> bool:
        """Whether the key is still valid: that of the launch, or one in ~/.ssh/authorized_keys."""
        if self._other_key is None:
            return True
        path = Path(self._environment["HOME"]) / ".ssh" / "authorized_keys"
        try:
            lines = path.read_text().splitlines()
        except OSError:
            return False
        return any(f" {self._other_key} " in f" {line} " for line in lines)

    def check_channel_request(self, kind: str, chanid: int) -> int:  # noqa: ARG002
        if kind == "session":
            return OPEN_SUCCEEDED
        return OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED

    def check_channel_env_request(
        self, channel: paramiko.Channel, name: bytes, value: bytes
    ) -> bool:
        key = name.decode("utf-8", "replace")
        if not key.startswith(_ACCEPTED_ENV):
            return False
        self._env.setdefault(channel.get_id(), {})[key] = value.decode("utf-8", "replace")
        return True

    def check_channel_pty_request(
        self,
        channel: paramiko.Channel,
        term: bytes,
        width: int,
        height: int,
        pixelwidth: int,  # noqa: ARG002
        pixelheight: int,  # noqa: ARG002
        modes: bytes,  # noqa: ARG002
    ) -> bool:
        kind = term.decode("utf-8", "replace")
        self._terminals[channel.get_id()] = Terminal(kind, width, height)
        return True

    def check_channel_window_change_request(
        self,
        channel: paramiko.Channel,
        width: int,
        height: int,
        pixelwidth: int,  # noqa: ARG002
        pixelheight: int,  # noqa: ARG002
    ) -> bool:
        terminal = self._terminals.get(channel.get_id())
        if terminal is None:
            return False
        terminal.resize(width, height)
        return True

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        return self._start(channel, ["/bin/bash", "-c", command.decode("utf-8", "surrogateescape")])

    def check_channel_shell_request(self, channel: paramiko.Channel) -> bool:
        return self._start(channel, ["/bin/bash", "-l"])

    def _start(self, channel: paramiko.Channel, argv: list[str]) -> bool:
        number = channel.get_id()
        environment = {**self._environment, **self._env.pop(number, {})}
        self._server.report_command()
        terminal = self._terminals.get(number)
        self._sessions[number] = Session(channel, argv, environment, terminal)
        return True
