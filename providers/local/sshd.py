"""A machine's SSH server: public keys only, commands and shells as the user who runs the cloud.

Not spoken: forwarding, SFTP, and the request to signal a running command.
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
_LOOK_S = 1.0  # a login whose key was taken away ends within this


@dataclass(frozen=True)
class Login:
    """Who may log in, and the machine's own key (OpenSSH private key format)."""

    user: str
    public_key: str
    host_private_key: str = field(repr=False)

    @classmethod
    def from_data(cls, data: Mapping[str, object]) -> Login:
        """Back from the plain JSON of a launch. Raises KeyError."""
        return cls(str(data["user"]), str(data["public_key"]), str(data["host_private_key"]))


def load_private_key(text: str) -> paramiko.PKey:
    """An Ed25519, ECDSA or RSA key in OpenSSH format. Raises ValueError."""
    for kind in (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey):
        try:
            return kind.from_private_key(io.StringIO(text))
        except (paramiko.SSHException, ValueError):
            continue
    raise ValueError("the host key is not an OpenSSH private key")


class SshServer:
    """Serves on a socket that is bound but does not listen yet."""

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
        """Listen and serve, on threads that end with the process."""
        self._socket.listen(_BACKLOG)
        threading.Thread(target=self._accept, name="ssh", daemon=True).start()

    def started_command(self) -> None:
        """Report the machine's first command."""
        if not self._used.is_set():
            self._used.set()
            self._on_exec()

    def _accept(self) -> None:
        while True:
            connection, _address = self._socket.accept()
            threading.Thread(target=self._converse, args=(connection,), daemon=True).start()

    def _converse(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport = _Transport(connection)
        transport.daemon = True
        transport.add_server_key(self._host_key)
        try:
            transport.start_server(server=_Rules(self, self._login, self._environment))
        except (paramiko.SSHException, EOFError, OSError) as error:
            print(f"ssh: no session: {error}", file=sys.stderr, flush=True)
            transport.close()
            return
        # Sessions run from _Rules. A channel nobody refers to closes itself, so they are kept here.
        channels: list[paramiko.Channel] = []
        rules = transport.server_object
        while transport.is_active():
            opened = transport.accept(_LOOK_S)
            if isinstance(rules, _Rules) and not rules.is_welcome():
                transport.close()
            channels = [
                channel for channel in [*channels, opened] if channel and not channel.closed
            ]

    def run(self, session: Session) -> None:
        """Run one command or shell on a thread of its own."""
        work = run_terminal if session.terminal else run_piped
        threading.Thread(target=work, args=(session, self._reaper), daemon=True).start()


def _answer_then_run(channel: paramiko.Channel, request: paramiko.Message) -> None:
    """A command starts when its request is answered: a quick one would close the channel before."""
    channel._handle_request(request)  # type: ignore[attr-defined]  # noqa: SLF001
    rules = channel.get_transport().server_object
    if isinstance(rules, _Rules):
        rules.run_asked(channel)


class _Transport(paramiko.Transport):
    _channel_handler_table = {  # noqa: RUF012  the base class's
        **paramiko.Transport._channel_handler_table,  # type: ignore[attr-defined]  # noqa: SLF001
        MSG_CHANNEL_REQUEST: _answer_then_run,
    }


class _Rules(paramiko.ServerInterface):
    """What one connection may do. Runs on the connection's thread, so it must not block."""

    def __init__(self, server: SshServer, login: Login, environment: Mapping[str, str]) -> None:
        self._server = server
        self._login = login
        self._environment = environment
        self._visitor: str | None = None  # a key that is not that of the launch
        self._asked: dict[int, dict[str, str]] = {}
        self._terminals: dict[int, Terminal] = {}
        self._sessions: dict[int, Session] = {}

    def run_asked(self, channel: paramiko.Channel) -> None:
        """Run what was asked for on this channel, if that was something to run."""
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
        self._visitor = None if offered == known else " ".join(offered)
        return AUTH_SUCCESSFUL if self.is_welcome() else AUTH_FAILED

    def is_welcome(self) -> bool:
        """Whether the key still opens this machine: the one of its launch, or one of the file that
        OpenSSH looks into."""
        if self._visitor is None:
            return True
        path = Path(self._environment["HOME"]) / ".ssh" / "authorized_keys"
        try:
            lines = path.read_text().splitlines()
        except OSError:
            return False
        return any(f" {self._visitor} " in f" {line} " for line in lines)

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
        self._asked.setdefault(channel.get_id(), {})[key] = value.decode("utf-8", "replace")
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
        environment = {**self._environment, **self._asked.pop(number, {})}
        self._server.started_command()
        terminal = self._terminals.get(number)
        self._sessions[number] = Session(channel, argv, environment, terminal)
        return True
