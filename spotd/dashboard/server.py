"""The dashboard's web server, on this machine's loopback, for the one user who knows its address.

The address has 256 random bits in its path and is new with each start; whoever knows it is let in.
A page of another site cannot learn it. Should it guess the address, `Host`, `Origin` and the
browser's own `Sec-Fetch-*` headers are checked as well, so that a host name that was pointed here
(DNS rebinding) gets nothing. There is only GET, so no request changes anything.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.resources import files

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from spotd.api_client.client import Target
from spotd.api_routes import routes
from spotd.base.connection_limit import Connection
from spotd.base.errors import UserError
from spotd.base.server_thread import ServerThread, listen_tcp, server_config
from spotd.dashboard import events, job, jobs, machine, overview, prices, provider
from spotd.dashboard.api_cache import ApiCache, PageData, Query
from spotd.dashboard.components import PageContext, Visitor
from spotd.dashboard.html import Html
from spotd.dashboard.layout import page

HOST = "127.0.0.1"
_NAMES = (HOST, "localhost")
_FILES = {"dash.css": "text/css", "dash.js": "text/javascript", "icon.svg": "image/svg+xml"}
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
    """ASGI middleware that passes only requests from the right browser with the right address."""

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
                headers = message.setdefault("headers", [])
                assert isinstance(headers, list)  # noqa: S101 - starlette's own
                headers += [
                    (name.lower().encode(), text.encode()) for name, text in HEADERS.items()
                ]
            await send(message)

        await (refusal or self._app)(scope, receive, with_headers)  # type: ignore[arg-type]

    def _refusal(self, request: Request) -> Response | None:
        headers = request.headers
        if headers.get("host", "") not in self._hosts:
            return _no(421, "these pages are served only at the address that the command printed")
        if headers.get("origin", "") not in {"", *self._origins}:
            return _no(403, "requests from other sites are refused")
        from_other_site = headers.get("sec-fetch-site", "none") in ("cross-site", "same-site")
        if from_other_site and headers.get("sec-fetch-mode") != "navigate":
            return _no(403, "requests from other sites are refused")
        token = request.scope["path"].split("/")[1].encode()
        if not hmac.compare_digest(token, self._token):
            return _no(403, "not the address that spotctl dashboard printed")
        if request.method not in ("GET", "HEAD"):
            response = _no(405, "nothing can be changed here: spotctl does that")
            response.headers["Allow"] = "GET, HEAD"
            return response
        return None


def _no(status: int, text: str) -> Response:
    return PlainTextResponse(f"{text}\n", status)


@dataclass
class DashboardServer:
    """A running server. `url` is its address, the secret included."""

    url: str
    web: ServerThread

    def stop(self) -> None:
        """See `ServerThread.stop`."""
        self.web.stop()


def start_server(cache: ApiCache, port: int = 0) -> DashboardServer:
    """Serve the data of `cache` on loopback; `port` 0 picks any free one. Raises UserError."""
    try:
        listener = listen_tcp(HOST, port, backlog=64)
    except OSError as error:
        message = f"cannot listen on {HOST}:{port}: {error.strerror}"
        raise UserError(message, "another --port, or none for any that is free") from None
    port, token = listener.getsockname()[1], secrets.token_urlsafe(32)
    config = server_config(make_app(cache, token, port), http=Connection, server_header=False)
    web = ServerThread(config, listener, "dashboard")
    if not web.start():
        raise UserError("the pages could not be served", "spotctl dashboard again")
    return DashboardServer(f"http://{HOST}:{port}/{token}/", web)


def make_app(cache: ApiCache, token: str, port: int) -> Starlette:
    """Return the application with all pages, under the path /`token`."""
    root, start = f"/{token}", secrets.token_hex(16)
    served = page_routes(cache, root, start)
    app = Starlette(routes=served, middleware=[Middleware(RequestCheck, token=token, port=port)])
    app.router.redirect_slashes = False
    return app


def page_routes(cache: ApiCache, root: str, start: str) -> list[Route]:
    """Return the routes of all pages, under the path `root`; `start`: see `PageContext`.

    A person who is logged in is the request's "visitor".
    """
    page = partial(_page, cache, root, start)
    return [
        Route(f"{root}/", page(_overview)),
        Route(f"{root}/jobs", page(_jobs)),
        Route(f"{root}/prices", page(_prices)),
        Route(f"{root}/events", page(_events)),
        Route(f"{root}/machine/{{node}}", page(_machine)),
        Route(f"{root}/provider/{{provider}}", page(_provider)),
        Route(f"{root}/job/{{job}}", page(_job)),
        Route(f"{root}/static/{{name}}", _static),
    ]


# A page: its title, its link in the navigation, and its content.
Page = tuple[str, str, Html]
PageMaker = Callable[[PageContext, ApiCache, PageData, Request], Page]


def _page(
    cache: ApiCache, root: str, start: str, make: PageMaker
) -> Callable[[Request], Awaitable[Response]]:
    from starlette.concurrency import run_in_threadpool

    def draw(request: Request) -> str:
        page_data = PageData()
        (health,) = cache.fetch(page_data, Query(routes.HEALTH()))
        now = datetime.now(UTC)
        if health and not page_data.away:
            now = datetime.fromisoformat(health["now"])
        visitor: Visitor | None = request.scope.get("visitor")
        # A person elsewhere has a `spotctl` of their own, which is not told this box's socket.
        target = Target() if visitor else cache.target
        context = PageContext(root, now, target, start, visitor)
        title, here, content = make(context, cache, page_data, request)
        return page(context, title, here, _about(health, cache), page_data, content)

    async def endpoint(request: Request) -> Response:
        return HTMLResponse(await run_in_threadpool(draw, request))

    return endpoint


def _about(health: Mapping[str, object] | None, cache: ApiCache) -> str:
    where = f" on {cache.target.host}" if cache.target.host else ""
    return f"deployment {health['deployment']}{where}" if health else f"a daemon{where}"


def _overview(context: PageContext, cache: ApiCache, page_data: PageData, _: Request) -> Page:
    return "Overview", "", overview.body(context, cache, page_data)


def _jobs(context: PageContext, cache: ApiCache, page_data: PageData, request: Request) -> Page:
    return "Jobs", "jobs", jobs.body(context, cache, page_data, request.query_params)


def _prices(context: PageContext, cache: ApiCache, page_data: PageData, request: Request) -> Page:
    return "Prices", "prices", prices.body(context, cache, page_data, request.query_params)


def _events(context: PageContext, cache: ApiCache, page_data: PageData, _: Request) -> Page:
    return "Events", "events", events.body(context, cache, page_data)


def _machine(context: PageContext, cache: ApiCache, page_data: PageData, request: Request) -> Page:
    title, content = machine.body(context, cache, page_data, request.path_params["node"])
    return title, "machine", content


def _provider(context: PageContext, cache: ApiCache, page_data: PageData, request: Request) -> Page:
    name = request.path_params["provider"]
    return name, "provider", provider.body(context, cache, page_data, name)


def _job(context: PageContext, cache: ApiCache, page_data: PageData, request: Request) -> Page:
    title, content = job.body(
        context, cache, page_data, request.path_params["job"], request.query_params
    )
    return title, "job", content


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _FILES:
        return _no(404, "there is no such file")
    data = files("spotd.dashboard").joinpath("static", name).read_bytes()
    return Response(data, media_type=_FILES[name])
