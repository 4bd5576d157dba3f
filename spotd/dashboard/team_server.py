"""The dashboard for a team: in the daemon, over TLS or behind a proxy, with a login.

Every request is for one of the hosts that it is configured with. A page needs a session, and a
change needs a form of this session's own pages besides (its CSRF token, the browser's `Origin`).
What a person may see and do, the API decides by the person's name, and writes into the audit.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import structlog
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from spotd.api_client.client import Target
from spotd.api_routes import routes
from spotd.base.addresses import split_listen
from spotd.base.clock import Clock
from spotd.base.connection_limit import Connection, TlsListener
from spotd.base.errors import ExitCode, UnreachableError, UserError
from spotd.base.server_thread import ServerThread, listen_tcp, plain_socket, server_config
from spotd.config.dashboard import DashboardSection
from spotd.dashboard import actions
from spotd.dashboard.api_cache import ApiCache, PageData
from spotd.dashboard.components import PageContext
from spotd.dashboard.html import Html, el, join
from spotd.dashboard.layout import page
from spotd.dashboard.login import LOGIN, LOGOUT, OIDC_CALLBACK, PUBLIC, Cookies, LoginEndpoints
from spotd.dashboard.login import document as plain_page
from spotd.dashboard.oidc import OidcLogin
from spotd.dashboard.server import HEADERS, page_routes
from spotd.dashboard.session import Logins, csrf_of, has_csrf, plain_address
from spotd.domain.fault_drill import DrillKind
from spotd.store.errors import StoreError
from spotd.store.interface import Store

log = structlog.get_logger(__name__)

_MAX_FORM = 8192  # bytes
_FORM_S = 10.0  # to send a form
_START_S = 60.0
# With forward secrecy, and authenticated.
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
_STATIC = "/static/"
_PORTS = {"http": 80, "https": 443}
# The status of a refused action.
_STATUS = {ExitCode.AUTH: 403, ExitCode.NOT_FOUND: 404, ExitCode.UNREACHABLE: 503}
_TEAM_HEADERS = {
    **HEADERS,
    # No path here is a secret. Without a referrer, a form's own `Origin` would be hidden as well.
    "Referrer-Policy": "same-origin",
}


class TeamGate:
    """ASGI middleware that passes requests of people who are logged in, and their own forms."""

    def __init__(self, app: ASGIApp, url: str, logins: Logins, cookies: Cookies) -> None:
        self._app = app
        self._url = url
        self._logins = logins
        self._cookies = cookies
        parts = urlsplit(url)
        self._scheme = parts.scheme
        self._hosts = {parts.netloc}
        if parts.port is None:
            self._hosts.add(f"{parts.netloc}:{_PORTS[parts.scheme]}")
        self._headers = dict(_TEAM_HEADERS)
        if self._scheme == "https":
            self._headers["Strict-Transport-Security"] = "max-age=31536000"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        refusal = self._misdirected(request) or await self._enter(request)

        async def with_headers(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message.setdefault("headers", []).extend(
                    (name.lower().encode(), text.encode()) for name, text in self._headers.items()
                )
            await send(message)

        await (refusal or self._app)(scope, receive, with_headers)  # type: ignore[arg-type]

    def _misdirected(self, request: Request) -> Response | None:
        """Refuse requests for another host, in the clear, or from a page of another site."""
        headers = request.headers
        if headers.get("host", "").lower() not in self._hosts:
            return _no(421, f"these pages are served only at {self._url}")
        if request.scope["scheme"] != self._scheme:
            return _no(403, f"these pages are served only over {self._scheme}: {self._url}")
        if request.method not in ("GET", "HEAD", "POST"):
            response = _no(405, "there is GET and POST")
            response.headers["Allow"] = "GET, HEAD, POST"
            return response
        site = headers.get("sec-fetch-site", "none" if request.method != "POST" else "same-origin")
        foreign = site not in ("none", "same-origin")
        if request.method == "POST":
            if foreign or headers.get("origin", "") != self._url:
                origin = headers.get("origin", "")[:200]
                log.warning("a form of another site was refused", origin=origin)
                return _no(403, "only forms of this dashboard's own pages are accepted")
            return None
        # A link leads here. No page of others shows one of these in a frame, or makes scripts ask.
        link = headers.get("sec-fetch-mode") == "navigate"
        link = link and headers.get("sec-fetch-dest", "document") == "document"
        if headers.get("origin", self._url) != self._url or (foreign and not link):
            return _no(403, "requests from other sites are refused")
        return None

    async def _enter(self, request: Request) -> Response | None:
        """Read the form and the session; refuse a request that lacks what it needs."""
        if request.method == "POST":
            try:
                form = await asyncio.wait_for(_read_form(request), _FORM_S)
            except TimeoutError:
                response = _no(408, f"a form is sent within {_FORM_S:g} s")
                response.headers["Connection"] = "close"
                return response
            except ClientDisconnect:
                return _no(400, "the form is incomplete")  # nobody is there to read it
            if form is None:
                return _no(413, "a form of this dashboard is smaller")
            request.scope["form"] = form
        path = request.scope["path"]
        if path in PUBLIC or path.startswith(_STATIC):
            return None
        secret = request.cookies.get(self._cookies.session, "")
        try:
            return await run_in_threadpool(self._admit, request, secret)
        except (StoreError, UnreachableError) as error:
            return _unavailable(request, error)

    def _admit(self, request: Request, secret: str) -> Response | None:
        person = self._logins.person(secret)
        if person is None:
            return _to_login(request)
        if request.method == "POST" and not has_csrf(request.scope["form"], secret):
            return _no(403, "this form is not from a page of your session: load it again")
        request.scope["person"] = person
        if request.scope["path"] == LOGOUT:
            return None
        try:
            request.scope["visitor"] = self._logins.visitor(person, secret)
        except UserError as error:
            if error.exit_code is not ExitCode.AUTH:
                raise
            logout = el(
                "form",
                el("input", type="hidden", name="csrf", value=csrf_of(secret)),
                el("button", "Log out", type="submit"),
                method="post",
                action=LOGOUT,
            )
            return HTMLResponse(plain_page("Not permitted", el("p", error.text), logout), 403)
        return None


def _unavailable(_: Request, error: Exception) -> Response:
    body = plain_page("Not available", el("p", f"spotd does not answer: {error}"))
    return HTMLResponse(body, 503)


def _to_login(request: Request) -> Response:
    """Send a person to the login page; a script's request or a form is refused."""
    navigates = request.headers.get("sec-fetch-mode", "navigate") == "navigate"
    if request.method == "POST" or not navigates:
        return _no(401, "log in again")
    path = request.scope["path"]
    query = request.scope.get("query_string", b"").decode("latin-1")
    then = quote(f"{path}?{query}" if query else path, safe="")
    return RedirectResponse(LOGIN if path == "/" else f"{LOGIN}?next={then}", 303)


async def _read_form(request: Request) -> Mapping[str, str] | None:
    """Return the fields of a form; None if it is too large."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > _MAX_FORM:
            return None
    return dict(parse_qsl(data.decode("utf-8", "replace")))


def _no(status: int, text: str) -> Response:
    return PlainTextResponse(f"{text}\n", status)


class PlainAddresses:
    """ASGI middleware that names an IPv4 client of an IPv6 socket by its IPv4 address."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if client := scope.get("client"):
            scope["client"] = (plain_address(client[0]), client[1])
        await self._app(scope, receive, send)


class ActionEndpoints:
    """The confirmation of each action, and the action itself."""

    def __init__(self, logins: Logins, start: str) -> None:
        self._logins = logins
        self._start = start

    def routes(self) -> list[Route]:
        """Return the routes of all actions."""
        return [
            Route(f"/job/{{job}}/{name}", self._endpoint(name), methods=["GET", "POST"])
            for name in actions.ACTIONS
        ]

    def _endpoint(self, name: str) -> Any:
        async def endpoint(request: Request) -> Response:
            answer = self._perform if request.method == "POST" else self._confirm
            return await run_in_threadpool(answer, name, request)

        return endpoint

    def _confirm(self, name: str, request: Request) -> Response:
        client, title = self._logins.client(request.scope["person"]), actions.ACTIONS[name].title
        if name not in request.scope["visitor"].allowed:
            text = f"{request.scope['visitor'].name} may read but not change anything."
            return self._page(request, title, el("p", text, cls="reason"), 403)
        try:
            job = client.call(routes.SHOW_JOB(job=request.path_params["job"]))
            kind = request.query_params.get("kind", DrillKind.SIGTERM.value)
            context = self._context(request)
            content = actions.confirmation(context, name, job, client, kind)
        except UserError as error:
            return self._refused(request, title, error)
        return self._page(request, f"{title} {job['name']}", content)

    def _perform(self, name: str, request: Request) -> Response:
        """Perform the action as the person: the API checks the permission and keeps the audit."""
        job_id = request.path_params["job"]
        client = self._logins.client(request.scope["person"])
        try:
            actions.perform(client, name, job_id, request.scope["form"])
        except UserError as error:
            return self._refused(request, actions.ACTIONS[name].title, error)
        return RedirectResponse(f"/job/{quote(job_id, safe='')}", 303)

    def _refused(self, request: Request, title: str, error: UserError) -> Response:
        back = el("a", "Back", href=f"/job/{quote(request.path_params['job'], safe='')}")
        advice = el("p", "Try: ", el("code", error.try_))
        content = join(el("p", error.text, cls="reason", role="alert"), advice, el("p", back))
        return self._page(request, title, content, _STATUS.get(error.exit_code, 409))

    def _context(self, request: Request) -> PageContext:
        visitor = request.scope["visitor"]
        return PageContext("", datetime.now(UTC), Target(), self._start, visitor)

    def _page(self, request: Request, title: str, content: Html, status: int = 200) -> Response:
        text = page(self._context(request), title, "job", "", PageData(), content)
        return HTMLResponse(text, status)


@dataclass
class TeamServer:
    """A running dashboard for a team."""

    port: int
    web: ServerThread
    cache: ApiCache
    certificate: tuple[Path, Path] | None = None

    def reload_certificate(self) -> None:
        """Read certificate and key again, for connections from now on. Raises UserError."""
        context = self.web.server.config.ssl
        if context is not None and self.certificate is not None:
            try:
                # What is refused half-way would leave the context with a certificate and another's
                # key, and every handshake would fail: try both in a context of their own.
                _load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.certificate)
                _load_certificate(context, self.certificate)
            except OSError as error:
                text = f"the dashboard's certificate cannot be read again: {error}"
                raise UserError(text, "check dashboard.tls_certificate and tls_key") from None

    def stop(self, timeout_s: float = 5.0) -> None:
        """See `ServerThread.stop`."""
        self.web.stop(timeout_s)
        self.cache.close()


def _load_certificate(context: ssl.SSLContext, certificate: tuple[Path, Path]) -> None:
    """Load certificate and key. Raises OSError, also for a key with a passphrase."""
    context.load_cert_chain(*certificate, password=lambda: "")  # no prompt on the terminal


def make_team_app(
    section: DashboardSection, cache: ApiCache, logins: Logins, oidc: OidcLogin | None, clock: Clock
) -> ASGIApp:
    """Return the application with login, pages and actions."""
    # It stays the same over a restart: a page that is open goes on. TLS names the server.
    start = hashlib.sha256(section.url.encode()).hexdigest()[:32]
    cookies = Cookies(section.url)
    endpoints = LoginEndpoints(
        logins,
        clock,
        cookies,
        session_s=section.session_h * 3600,
        tokens=section.tokens,
        oidc=oidc,
    )
    served = [
        *endpoints.routes(),
        *ActionEndpoints(logins, start).routes(),
        *page_routes(cache, "", start),
    ]
    gate = Middleware(TeamGate, url=section.url, logins=logins, cookies=cookies)
    app = Starlette(
        routes=served,
        middleware=[gate],
        exception_handlers={StoreError: _unavailable, UnreachableError: _unavailable},
    )
    app.router.redirect_slashes = False
    if not section.trusted_proxies:
        return app
    proxied = ProxyHeadersMiddleware(app, trusted_hosts=list(section.trusted_proxies))  # type: ignore[arg-type]
    return PlainAddresses(proxied)  # type: ignore[arg-type]


def start_team_server(
    section: DashboardSection, client_secret: str, store: Store, clock: Clock, api_socket: Path
) -> TeamServer:
    """Serve the dashboard as `section` says until `stop`.

    Whoever logged in at an identity provider logs in again after a start, because the configuration
    may give other roles by now. Raises UserError if it cannot be served.
    """
    oidc = None
    if section.oidc is not None:
        oidc = OidcLogin(section.oidc, client_secret, f"{section.url}{OIDC_CALLBACK}", clock)
    store.logins.end_provider_sessions()
    if not section.tokens:
        store.logins.end_token_sessions()
    logins = Logins(store, clock, api_socket, section.session_h)
    cache = ApiCache(Target(socket=str(api_socket)))
    try:
        return _serve(section, make_team_app(section, cache, logins, oidc, clock), cache)
    except BaseException:
        cache.close()
        raise


def _serve(section: DashboardSection, app: ASGIApp, cache: ApiCache) -> TeamServer:
    certificate = None
    if section.tls_certificate and section.tls_key:
        certificate = (section.tls_certificate, section.tls_key)
    listener = _listen(section.listen, tls=certificate is not None)
    config = server_config(  # make_team_app wraps the application where proxies are trusted
        app,
        loop="asyncio",  # another would accept without TlsListener.accept
        http=listener.protocol() if isinstance(listener, TlsListener) else Connection,
        server_header=False,
        ssl_certfile=certificate[0] if certificate else None,
        ssl_keyfile=certificate[1] if certificate else None,
        ssl_ciphers=_CIPHERS,
    )
    try:
        if certificate:
            _load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate)
        config.load()
    except OSError as error:
        listener.close()
        text = f"dashboard.tls_certificate and tls_key cannot be used: {error}"
        raise UserError(text, "check that they are PEM files that belong together") from None
    port = listener.getsockname()[1]
    web = ServerThread(config, listener, "spotd-dashboard")
    if not web.start(_START_S):
        raise UserError("the dashboard did not start", "see the daemon's log")
    return TeamServer(port, web, cache, certificate)


def _listen(listen: str, *, tls: bool) -> socket.socket:
    host, port = split_listen(listen, example="0.0.0.0:8443")
    try:
        return listen_tcp(host, port, backlog=128, make=TlsListener if tls else plain_socket)
    except OSError as error:
        text = f"cannot serve the dashboard at {listen}: {error.strerror}"
        advice = "set another dashboard.listen in config.toml; `ss -tlnp` says who has the port"
        raise UserError(text, advice) from error
