"""Metrics over TCP, for a Prometheus on this machine: one page, read with a token, nothing else.

Prometheus cannot scrape a unix socket. This door knows no other route and no user, so that whoever
has its token can look at figures and do nothing.
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

_START_S = 10.0


class ScrapeError(UserError):
    """The address cannot be served."""


@dataclass
class MetricsServer:
    """One that is open. `stop` closes it. `port` is the one that it has."""

    port: int
    server: uvicorn.Server
    thread: threading.Thread
    listener: socket.socket

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop listening, and join the thread."""
        self.server.should_exit = True
        self.thread.join(timeout_s)
        self.listener.close()


def serve_scrapes(text: Callable[[], bytes], host: str, port: int, token: str) -> MetricsServer:
    """Serve `text()` as /metrics at an address of this machine until `stop`; port 0 is any that is
    free. Raises ScrapeError when the address cannot be had."""
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
        timeout_keep_alive=75,  # longer than Prometheus' usual pause
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(
        target=server.run, kwargs={"sockets": [listener]}, name="spotd-metrics", daemon=True
    )
    thread.start()
    door = MetricsServer(listener.getsockname()[1], server, thread, listener)
    end_s = time.monotonic() + _START_S
    while not server.started:
        if not thread.is_alive() or time.monotonic() > end_s:
            door.stop()
            raise ScrapeError(f"metrics did not start on {host}", "see the daemon's log")
        time.sleep(0.002)
    return door


def _app(text: Callable[[], bytes], token: str) -> Starlette:
    wanted = f"Bearer {token}".encode()

    async def scrape(request: Request) -> Response:
        given = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(given, wanted):
            refused = {"WWW-Authenticate": "Bearer"}
            say = (
                "the token of [metrics] in config.toml is wanted: authorization in prometheus.yml\n"
            )
            return PlainTextResponse(say, 401, refused)
        return Response(await run_in_threadpool(text), media_type=CONTENT_TYPE)

    return Starlette(routes=[Route("/metrics", scrape, methods=["GET"])])
