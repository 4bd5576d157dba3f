"""Metrics over TCP for a Prometheus on this machine: one page, read with a token.

Prometheus cannot scrape a unix socket. This server has no other route and no users, so the token
gives read access to metrics and nothing else.
"""

from __future__ import annotations

import hmac
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from spotd.api.metrics.exposition import CONTENT_TYPE
from spotd.base.connection_limit import Connection
from spotd.base.errors import UserError
from spotd.base.server_thread import stop_server

_START_S = 10.0


class ScrapeError(UserError):
    """The address cannot be served."""


@dataclass
class MetricsServer:
    """A running metrics server. `port` is the port it listens on."""

    port: int
    server: uvicorn.Server
    thread: threading.Thread
    listener: socket.socket

    def stop(self, timeout_s: float = 5.0) -> None:
        """See `stop_server`."""
        stop_server(self.server, thread=self.thread, listener=self.listener, timeout_s=timeout_s)


def serve_scrapes(text: Callable[[], bytes], host: str, port: int, token: str) -> MetricsServer:
    """Serve `text()` as /metrics at `host` and `port` until `stop`.

    Port 0 picks any free port. Raises ScrapeError when the address is not available.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(16)
    except OSError as error:
        listener.close()
        raise ScrapeError(
            f"cannot serve metrics at {host}, port {port}: {error.strerror}",
            "set another metrics.listen in config.toml; `ss -tlnp` says who has the port",
        ) from error
    config = uvicorn.Config(
        _app(text, token),
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        timeout_keep_alive=75,  # longer than the usual scrape interval of Prometheus
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(
        target=server.run, kwargs={"sockets": [listener]}, name="spotd-metrics", daemon=True
    )
    thread.start()
    running = MetricsServer(listener.getsockname()[1], server, thread, listener)
    deadline_s = time.monotonic() + _START_S
    while not server.started:
        if not thread.is_alive() or time.monotonic() > deadline_s:
            running.stop()
            raise ScrapeError(f"metrics did not start on {host}", "see the daemon's log")
        time.sleep(0.002)
    return running


def _app(text: Callable[[], bytes], token: str) -> Starlette:
    expected = f"Bearer {token}".encode()

    async def scrape(request: Request) -> Response:
        received = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(received, expected):
            headers = {"WWW-Authenticate": "Bearer"}
            message = (
                "the token of [metrics] in config.toml is wanted: authorization in prometheus.yml\n"
            )
            return PlainTextResponse(message, 401, headers)
        return Response(await run_in_threadpool(text), media_type=CONTENT_TYPE)

    return Starlette(routes=[Route("/metrics", scrape, methods=["GET"])])
