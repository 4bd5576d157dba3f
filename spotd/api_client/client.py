"""HTTP client of the daemon's API: JSON over its unix socket, standard library only."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import IO, Any

import typer

from spotd.api_routes import routes
from spotd.api_routes.operation import Endpoint
from spotd.api_routes.person import HEADER, Person
from spotd.base.errors import ExitCode, UnreachableError, UserError
from spotd.base.paths import SYSTEM_SOCKET, client_sockets, present

_CONNECT_TIMEOUT_S = 10.0
_REPLY_TIMEOUT_S = 60.0  # more than the daemon's longest wait
_UPLOAD_TIMEOUT_S = 1800.0  # the daemon replies when up to 1 GiB is in its own store
_RETRY_S = 0.5
_CHUNK_BYTES = 1 << 20
_UNAVAILABLE = 503

# Codes of the API's errors and how the command then ends.
EXIT_CODES = {
    "bad_input": ExitCode.USAGE,
    "too_large": ExitCode.USAGE,
    "not_found": ExitCode.NOT_FOUND,
    "refused": ExitCode.REFUSED,
    "auth": ExitCode.AUTH,
}


class UnavailableError(UserError):
    """The daemon answers, but something it depends on is temporarily unavailable."""


@dataclass(frozen=True)
class Target:
    """Which daemon to talk to: the one on this machine, or the one on `host` over ssh.

    An empty `socket` stands for the standard paths.
    """

    host: str = ""
    socket: str = ""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, reply_s: float) -> None:
        super().__init__("spotd", timeout=reply_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_CONNECT_TIMEOUT_S)
        self.sock.connect(str(self._path))
        self.sock.settimeout(self.timeout)


class Client:
    """Requests to one daemon, each on a connection of its own, so that no connection is stale.

    Every error reply becomes a UserError with its exit code. `reply_s` bounds the wait for a reply.
    `person`: the daemon's own dashboard requests it for somebody else.
    """

    def __init__(
        self,
        path: Path,
        address: str = "",
        reply_s: float = _REPLY_TIMEOUT_S,
        person: Person | None = None,
    ) -> None:
        self._path = path
        self._person = {HEADER: person.header()} if person else {}
        self._address = address or str(path)
        self._reply_s = reply_s

    @property
    def address(self) -> str:
        """Name of the daemon for messages: its socket, after its host if it is remote."""
        return self._address

    def call(
        self,
        endpoint: Endpoint,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, object] | None = None,
        reply_s: float = 0.0,
    ) -> dict[str, Any]:
        """Call an operation with the fields of its JSON body and its query parameters.

        Query parameters that are "" or None are left out. `reply_s` replaces the limit for a slow
        request. Raises ValueError for a field that the operation does not take.
        """
        endpoint.check_body(body or ())
        data, headers = None, {}
        if endpoint.operation.method == "POST":
            data, headers = json.dumps(body or {}).encode(), {"Content-Type": "application/json"}
        return self._check(*self._request(endpoint, query or {}, data, headers, reply_s))

    def has_package(self, digest: str) -> bool:
        """Return whether the daemon already has that upload."""
        status, _ = self._request(routes.HAS_PACKAGE(digest=digest), {}, None, {})
        return status == 200

    def put_package(self, digest: str, file: IO[bytes], length: int) -> None:
        """Upload the archive in `file`, `length` bytes."""
        self._put(routes.PUT_PACKAGE(digest=digest), {}, file, length)

    def put_shard(self, import_id: str, data: bytes, query: Mapping[str, object]) -> dict[str, Any]:
        """Upload a shard of a checkpoint that is imported."""
        return self._put(routes.IMPORT_SHARD(name=import_id), query, data, len(data))

    def with_retry(
        self, request: Callable[[], dict[str, Any]], patience_s: float
    ) -> dict[str, Any]:
        """Call `request()`, and again while the daemon or its database is away, as in a restart.

        Stops after `patience_s` seconds. Only for requests that may be repeated.
        """
        give_up_at = time.monotonic() + patience_s
        while True:
            try:
                return request()
            except (UnreachableError, UnavailableError):
                if time.monotonic() > give_up_at:
                    raise
                time.sleep(_RETRY_S)

    def _put(
        self, endpoint: Endpoint, query: Mapping[str, object], body: bytes | IO[bytes], length: int
    ) -> dict[str, Any]:
        headers = {"Content-Length": str(length)}
        return self._check(*self._request(endpoint, query, body, headers, _UPLOAD_TIMEOUT_S))

    def _check(self, status: int, data: bytes) -> dict[str, Any]:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            value = None
        error = value.get("error", {}) if isinstance(value, dict) else None
        if not isinstance(value, dict) or not isinstance(error, dict):
            raise UserError(
                f"the server on {self._address} is not spotd (HTTP {status})",
                "check --socket and --host",
            )
        if status >= 400:
            code = EXIT_CODES.get(str(error.get("code", "")), ExitCode.FAILURE)
            message = str(error.get("text", f"HTTP {status}"))
            fix = str(error.get("try", "spotctl doctor"))
            if status == _UNAVAILABLE:
                raise UnavailableError(message, fix, code)
            raise UserError(message, fix, code)
        return value

    def fetch(
        self, endpoint: Endpoint, file: IO[bytes], query: Mapping[str, object] | None = None
    ) -> Message:
        """Write the reply of an operation into `file` as it arrives, and return its headers."""
        with self._open_response(endpoint, query or {}, None, {}, _UPLOAD_TIMEOUT_S) as response:
            if response.status >= 400:
                self._check(response.status, response.read())
            while chunk := response.read1(_CHUNK_BYTES):
                try:
                    file.write(chunk)
                except OSError as error:
                    message = f"the reply cannot be written: {error.strerror}"
                    raise UserError(message, "free disk space: df") from None
            return response.headers

    def _request(
        self,
        endpoint: Endpoint,
        query: Mapping[str, object],
        body: bytes | IO[bytes] | None,
        headers: dict[str, str],
        reply_s: float = 0.0,
    ) -> tuple[int, bytes]:
        with self._open_response(endpoint, query, body, headers, reply_s) as response:
            return response.status, response.read()

    @contextlib.contextmanager
    def _open_response(
        self,
        endpoint: Endpoint,
        query: Mapping[str, object],
        body: bytes | IO[bytes] | None,
        headers: dict[str, str],
        reply_s: float,
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request and yield its reply, which is read inside the block."""
        method, target = endpoint.operation.method, endpoint.target(query)
        connection = _UnixConnection(self._path, reply_s or self._reply_s)
        try:
            # A refusal comes before an upload has been read to its end.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, target, body=body, headers={**headers, **self._person})
            yield connection.getresponse()
        except PermissionError:
            raise UserError(
                f"you may not open {self._address}",
                "sudo usermod -aG spotd $USER, then log in again",
                ExitCode.AUTH,
            ) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise UnreachableError(
                f"no daemon answers on {self._address}: {reason}",
                "sudo systemctl start spotd (or: spotd run), or spotctl --host user@box",
            ) from None
        finally:
            connection.close()


@contextlib.contextmanager
def connect(ctx: typer.Context) -> Iterator[Client]:
    """Yield a client for the daemon that the global options name, for one command."""
    target: Target = ctx.obj
    if not target.host:
        yield Client(local_socket(target.socket))
        return
    from spotd.api_client.tunnel import forward

    remote = target.socket or str(SYSTEM_SOCKET)
    with forward(target.host, remote) as path:
        yield Client(path, f"{target.host}:{remote}")


def local_socket(path: str) -> Path:
    """Return `path` if it is given, else the first standard socket that exists."""
    if path:
        return Path(path)
    return next(filter(present, client_sockets(os.environ)), SYSTEM_SOCKET)


def complete_job(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return names of jobs for shell completion; none when the daemon is away."""
    root = ctx.find_root().params
    ctx.obj = Target(host=root.get("host") or "", socket=root.get("socket") or "")
    try:
        with connect(ctx) as client:
            jobs = client.call(routes.LIST_JOBS(), query={"all": 1})["items"]
    except UserError:
        return []
    return [job["name"] for job in jobs if job["name"].startswith(incomplete)]


JOB = typer.Argument(metavar="JOB", help="Name or id.", autocompletion=complete_job)
