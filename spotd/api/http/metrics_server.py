"""Metrics over TCP for a Prometheus on this machine: one page, read with a token.

Prometheus cannot scrape a unix socket. This server has no other route and no users, so the token
gives read access to metrics and nothing else.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from spotd.api.metrics.exposition import CONTENT_TYPE
from spotd.base.connection_limit import Connection
from spotd.base.errors import UserError
from spotd.base.server_thread import ServerThread, listen_tcp, server_config


class ScrapeError(UserError):
    """The address cannot be served."""


@dataclass
class MetricsServer:
    """A running metrics server. `port` is the port it listens on."""

    port: int
    web: ServerThread

    def stop(self, timeout_s: float = 5.0) -> None:
        """See `ServerThread.stop`."""
        self.web.stop(timeout_s)


def serve_scrapes(text: Callable[[], bytes], host: str, port: int, token: str) -> MetricsServer:
    """Serve `text()` as /metrics at `host` and `port` until `stop`.

    Port 0 picks any free port. Raises ScrapeError when the address is not available.
    """
    try:
        listener = listen_tcp(host, port, backlog=16)
    except OSError as error:
        raise ScrapeError(
            f"cannot serve metrics at {host}, port {port}: {error.strerror}",
            "set another metrics.listen in config.toml; `ss -tlnp` says who has the port",
        ) from error
    config = server_config(
        _app(text, token),
        http=Connection,
        server_header=False,
        timeout_keep_alive=75,  # longer than the usual scrape interval of Prometheus
    )
    running = MetricsServer(
        listener.getsockname()[1], ServerThread(config, listener, "spotd-metrics")
    )
    if not running.web.start():
        raise ScrapeError(f"metrics did not start on {host}", "see the daemon's log")
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
