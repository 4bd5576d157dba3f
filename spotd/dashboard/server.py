"""The pages, served on this machine's loopback to the one person who was told their address.

Who is let in: whoever knows the address, which has 256 random bits in its path and is made anew by
each start. A page of another site cannot learn it; were it to guess, `Host`, `Origin` and what
browsers say of themselves (`Sec-Fetch-*`) are checked as well, so that a name that was made to lead
here (DNS rebinding) gets nothing. Nothing here can be told to do anything: there is GET alone.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.resources import files

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from spotd.base.connection_limit import Connection
from spotd.base.errors import UserError
from spotd.dashboard import events, job, overview, prices
from spotd.dashboard.api_cache import ApiCache, PageData, Query
from spotd.dashboard.components import PageContext
from spotd.dashboard.html import Html
from spotd.dashboard.layout import page

HOST = "127.0.0.1"
_NAMES = (HOST, "localhost")
_FILES = {"dash.css": "text/css", "dash.js": "text/javascript", "icon.svg": "image/svg+xml"}
_START_TIMEOUT_S = 10.0
# No script, style, picture or request but our own; no form elsewhere; in no frame.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",  # the address is a secret
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class RequestCheck:
    """Lets requests through that the right browser made, with the right address."""

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = {f"{name}:{port}" for name in _NAMES}
        self._origins = {f"http://{host}" for host in self._hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope)
        refusal = self._refusal(request)

        async def with_headers(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                found = message.setdefault("headers", [])
                assert isinstance(found, list)  # noqa: S101 - starlette's own
                found += [(name.lower().encode(), text.encode()) for name, text in HEADERS.items()]
            await send(message)

        await (refusal or self._app)(scope, receive, with_headers)  # type: ignore[arg-type]

    def _refusal(self, request: Request) -> Response | None:
        headers = request.headers
        if headers.get("host", "") not in self._hosts:
            return _no(421, "this is answered under the address alone that it was started with")
        if headers.get("origin", "") not in {"", *self._origins}:
            return _no(403, "pages of others may not ask")
        elsewhere = headers.get("sec-fetch-site", "none") in ("cross-site", "same-site")
        if elsewhere and headers.get("sec-fetch-mode") != "navigate":
            return _no(403, "pages of others may not ask")
        token = request.scope["path"].split("/")[1].encode()
        if not hmac.compare_digest(token, self._token):
            return _no(403, "not the address that spotctl dashboard printed")
        if request.method not in ("GET", "HEAD"):
            refused = _no(405, "nothing can be changed here: spotctl does that")
            refused.headers["Allow"] = "GET, HEAD"
            return refused
        return None


def _no(status: int, text: str) -> Response:
    return PlainTextResponse(f"{text}\n", status)


@dataclass
class DashboardServer:
    """Pages that are being served. `url` is their address, the secret included."""

    url: str
    server: uvicorn.Server
    thread: threading.Thread
    listener: socket.socket

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(5.0)
        self.listener.close()


def open_door(source: ApiCache, port: int = 0) -> DashboardServer:
    """Serve what `source` tells on loopback; `port` 0 is any free one. Raises UserError."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except OSError as error:
        listener.close()
        text = f"cannot listen on {HOST}:{port}: {error.strerror}"
        raise UserError(text, "another --port, or none for any that is free") from None
    listener.listen(64)
    port, token = listener.getsockname()[1], secrets.token_urlsafe(32)
    config = uvicorn.Config(
        make_app(source, token, port),
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,  # it would have the secret in it
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(
        target=server.run, kwargs={"sockets": [listener]}, name="dashboard", daemon=True
    )
    thread.start()
    door = DashboardServer(f"http://{HOST}:{port}/{token}/", server, thread, listener)
    end = time.monotonic() + _START_TIMEOUT_S
    while not server.started:
        if not thread.is_alive() or time.monotonic() > end:
            door.stop()
            raise UserError("the pages could not be served", "spotctl dashboard again")
        time.sleep(0.002)
    return door


def make_app(source: ApiCache, token: str, port: int) -> Starlette:
    """All pages, under the path /`token`."""
    root, start = f"/{token}", secrets.token_hex(16)
    page = partial(_page, source, root, start)
    routes = [
        Route(f"{root}/", page(_overview)),
        Route(f"{root}/prices", page(_prices)),
        Route(f"{root}/events", page(_events)),
        Route(f"{root}/job/{{job}}", page(_job)),
        Route(f"{root}/static/{{name}}", _static),
    ]
    app = Starlette(routes=routes, middleware=[Middleware(RequestCheck, token=token, port=port)])
    app.router.redirect_slashes = False
    return app


# What makes a page: its title, the link that it is, and its content.
Made = tuple[str, str, Html]
Maker = Callable[[PageContext, ApiCache, PageData, Request], Made]


def _page(
    source: ApiCache, root: str, start: str, make: Maker
) -> Callable[[Request], Awaitable[Response]]:
    from starlette.concurrency import run_in_threadpool

    def draw(request: Request) -> str:
        reading = PageData()
        (health,) = source.ask(reading, Query("/v1/health"))
        now = datetime.now(UTC)
        if health and not reading.away:
            now = datetime.fromisoformat(health["now"])
        place = PageContext(root, now, source.target, start)
        title, here, content = make(place, source, reading, request)
        return page(place, title, here, _about(health, source), reading, content)

    async def endpoint(request: Request) -> Response:
        return HTMLResponse(await run_in_threadpool(draw, request))

    return endpoint


def _about(health: Mapping[str, object] | None, source: ApiCache) -> str:
    where = f" on {source.target.host}" if source.target.host else ""
    return f"deployment {health['deployment']}{where}" if health else f"a daemon{where}"


def _overview(place: PageContext, source: ApiCache, reading: PageData, _: Request) -> Made:
    return "Overview", "", overview.body(place, source, reading)


def _prices(place: PageContext, source: ApiCache, reading: PageData, request: Request) -> Made:
    return "Prices", "prices", prices.body(place, source, reading, request.query_params)


def _events(place: PageContext, source: ApiCache, reading: PageData, _: Request) -> Made:
    return "Events", "events", events.body(place, source, reading)


def _job(place: PageContext, source: ApiCache, reading: PageData, request: Request) -> Made:
    title, content = job.body(place, source, reading, request.path_params["job"])
    return title, "job", content


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _FILES:
        return _no(404, "there is no such file")
    data = files("spotd.dashboard").joinpath("static", name).read_bytes()
    return Response(data, media_type=_FILES[name])
