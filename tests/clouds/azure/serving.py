"""Run the Azure stand-in: Resource Manager, the token service and the retail prices at one local
address, over TLS with a generated certificate."""

from __future__ import annotations

import json
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import trustme

from tests.clouds.azure.arm import SUBSCRIPTION, TENANT, TOKEN, Arm, Reply, Request
from tests.clouds.azure.refusals import REFUSALS, error
from tests.clouds.machines import Machines

GROUP = "spotd-group"
_SECRET = "standin-secret"


@dataclass(frozen=True, eq=False)
class StandIn:
    """`environ` is the environment that a process needs to find its credentials and to trust the
    certificate; `settings` are those of the adapter."""

    arm: Arm
    environ: dict[str, str]
    settings: dict[str, Any]


@contextmanager
def serving(
    folder: Path, address: str = "127.0.0.1", machines: Machines | None = None
) -> Iterator[StandIn]:
    """Run Azure for the duration of the block, with its certificate in `folder`."""
    authority = trustme.CA()
    pem = folder / "azure-ca.pem"
    authority.cert_pem.write_to_path(str(pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(address).configure_cert(context)
    arm = Arm(machines)
    server = _Server((address, 0), context, arm)
    arm.endpoint = f"https://{address}:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    environ = {
        "AZURE_TENANT_ID": TENANT,
        "AZURE_CLIENT_ID": "standin",
        "AZURE_CLIENT_SECRET": _SECRET,
        "AZURE_TOKEN_CREDENTIALS": "EnvironmentCredential",  # and nothing else is tried
        "REQUESTS_CA_BUNDLE": str(pem),
    }
    settings = {
        "subscription_id": SUBSCRIPTION,
        "resource_group": GROUP,
        "endpoint": arm.endpoint,
        "authority": arm.endpoint,
        "prices_endpoint": arm.endpoint,
    }
    try:
        yield StandIn(arm, environ, settings)
    finally:
        arm.fleet.close()
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], context: ssl.SSLContext, arm: Arm) -> None:
        super().__init__(address, _Handler)
        self.arm = arm
        self.socket = context.wrap_socket(
            self.socket, server_side=True, do_handshake_on_connect=False
        )

    def server_bind(self) -> None:
        """Bind without a name lookup of this computer."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits for the client's delayed ACK
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log nothing."""

    def _serve(self) -> None:
        arm = self.server.arm
        parts = urlsplit(self.path)
        size = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(size)
        kind = self.headers.get("Content-Type", "")
        body = json.loads(raw) if raw and "json" in kind else dict(parse_qsl(raw.decode()))
        request = Request(
            self.command,
            unquote(parts.path),
            dict(parse_qsl(parts.query)),
            {key.title(): value for key, value in self.headers.items()},
            body,
        )
        with arm.lock:
            arm.calls.append(request)
        fault = arm.faults.take(request.call)
        what = fault.what if fault is not None else ""
        if what in REFUSALS and not (what == "conflict" and self.command == "DELETE"):
            status, code, message = REFUSALS[what]
            headers = {"Retry-After": "3"} if status == 429 else {}
            self._send(Reply(status, error(code, message), headers))
            return
        if what == "garbage":
            self._send_raw(200, b"<html>a proxy's page", "text/html", {})
            return
        reply = self._reply(arm, request, what)
        if fault is not None and what == "hang":
            arm.faults.hang(fault)
        if what == "lost_reply":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self._send(reply)

    do_GET = do_PUT = do_PATCH = do_DELETE = do_POST = _serve  # noqa: N815 - http.server's names

    def _reply(self, arm: Arm, request: Request, fault: str) -> Reply:
        if request.path.startswith(("/subscriptions/", "/providers/")):
            return arm.answer(request, fault)
        if request.path.startswith("/console/"):
            machine = arm.world.machines[request.path.removeprefix("/console")]
            return Reply(200, machine.console)
        if request.path == "/api/retail/prices":
            return _prices(arm, request)
        return _identity(arm, request)

    def _send(self, reply: Reply) -> None:
        if isinstance(reply.body, str):
            body, kind = reply.body.encode(), "application/octet-stream"
        else:
            body = b"" if reply.body is None else json.dumps(reply.body).encode()
            kind = "application/json; charset=utf-8"
        self._send_raw(reply.status, body, kind, dict(reply.headers))

    def _send_raw(self, status: int, body: bytes, kind: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        if body:
            self.send_header("Content-Type", kind)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _identity(arm: Arm, request: Request) -> Reply:
    """Microsoft Entra: discovery, and a token for a client with the right secret."""
    base = f"{arm.endpoint}/{TENANT}"
    if request.path.endswith("/.well-known/openid-configuration"):
        return Reply(
            200,
            {
                "issuer": f"{base}/v2.0",
                "authorization_endpoint": f"{base}/oauth2/v2.0/authorize",
                "token_endpoint": f"{base}/oauth2/v2.0/token",
            },
        )
    if request.path != f"/{TENANT}/oauth2/v2.0/token":
        return Reply(404, {"error": "invalid_request", "error_description": request.path})
    if request.body.get("client_secret") != _SECRET:
        message = "AADSTS7000215: Invalid client secret provided."
        return Reply(401, {"error": "invalid_client", "error_description": message})
    return Reply(200, {"token_type": "Bearer", "expires_in": 3599, "access_token": TOKEN})


def _prices(arm: Arm, request: Request) -> Reply:
    """The retail prices: without credentials, and with their own paging."""
    text = request.query.get("$filter", "")
    region = re.search("armRegionName eq '([^']+)'", text)
    sizes = re.findall("armSkuName eq '([^']+)'", text)
    with arm.lock:
        rows = arm.catalog.prices(region[1] if region else "", sizes)
        page, start = max(2, arm.page // 2), int(request.query.get("$skip", "0"))
    some = rows[start : start + page]
    link = None
    if start + page < len(rows):
        more = {**request.query, "$skip": str(start + page)}
        reported = "&".join(f"{key}={value}" for key, value in more.items())
        link = f"{arm.endpoint}{request.path}?{reported}".replace(" ", "%20")
    return Reply(
        200,
        {
            "BillingCurrency": "USD",
            "CustomerEntityId": "Default",
            "Items": some,
            "NextPageLink": link,
            "Count": len(some),
        },
    )
