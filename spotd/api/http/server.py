"""The API on a unix socket, served by uvicorn in a thread of the daemon."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from spotd.base.errors import UserError
from spotd.base.server_thread import ServerThread, server_config

SOCKET_MODE = 0o660
_MAX_PATH_BYTES = 107  # sun_path of Linux, without the NUL at its end


class SocketError(UserError):
    """The socket cannot be served."""


class PeerProtocol(H11Protocol):
    """HTTP protocol that identifies the client by the uid that the kernel reports.

    `client` is ("uid:N", pid).
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family == socket.AF_UNIX:
            raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            pid, uid, _ = struct.unpack("3i", raw)
            self.client = (f"uid:{uid}", pid)


@dataclass
class Server:
    """A running API server. `stop` closes it and removes the socket."""

    path: Path
    web: ServerThread
    lock: int

    def stop(self, timeout_s: float = 5.0) -> None:
        """See `ServerThread.stop`; the socket's file goes in any case."""
        self.web.stop(timeout_s)
        self.path.unlink(missing_ok=True)
        os.close(self.lock)


def serve(app: Starlette, path: Path) -> Server:
    """Serve `app` on the unix socket `path` (mode 0660) until `stop`.

    Replaces a stale socket. Raises SocketError when another live process serves it, or when it
    cannot be created.
    """
    lock = _lock(path)
    try:
        listener = _listen(path)
    except BaseException:
        os.close(lock)
        raise
    config = server_config(app, http=PeerProtocol, timeout_keep_alive=30)
    web = ServerThread(config, listener, "spotd-api")
    app.state.stopping = lambda: web.server.should_exit
    running = Server(path, web, lock)
    if not web.start():
        running.stop()
        raise SocketError(f"the API did not start on {path}", "see the daemon's log")
    return running


def _lock(path: Path) -> int:
    """Take the lock that is held while the socket is served.

    It keeps two starting daemons from both replacing the socket.
    """
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise SocketError(
            f"the socket path {path} is longer than {_MAX_PATH_BYTES} bytes",
            "set a shorter `socket` in config.toml, such as /run/spotd/spotd.sock",
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _cannot(path, error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise _busy(path) from None
    return lock


def _listen(path: Path) -> socket.socket:
    if _answers(path):
        raise _busy(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        old_umask = os.umask(0o777 & ~SOCKET_MODE)
        try:
            listener.bind(str(path))
        finally:
            os.umask(old_umask)
        path.chmod(SOCKET_MODE)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise _cannot(path, error) from error
    return listener


def _answers(path: Path) -> bool:
    """Return whether any process accepts connections there, with our lock or without it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError as error:
            raise _cannot(path, error) from error
    return True


def _busy(path: Path) -> SocketError:
    return SocketError(
        f"another process serves {path} already",
        "stop that daemon first (systemctl stop spotd), or set another `socket` in config.toml",
    )


def _cannot(path: Path, error: OSError) -> SocketError:
    return SocketError(
        f"cannot open the socket {path}: {error.strerror}",
        "let the user that runs spotd write to its folder, or set another `socket` in config.toml",
    )
