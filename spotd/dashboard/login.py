"""The login page of the team's dashboard, and the endpoints that log in and out."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from spotd.api_routes.person import Person
from spotd.base.clock import Clock
from spotd.base.errors import ExitCode, UserError
from spotd.dashboard.html import Html, el, join
from spotd.dashboard.oidc import PENDING_S, OidcLogin
from spotd.dashboard.session import LOGINS, STARTS, LoginLimit, Logins, plain_address
from spotd.store.logins import UserToken

LOGIN = "/login"
OIDC_START = "/login/oidc"
OIDC_CALLBACK = "/login/oidc/callback"
LOGOUT = "/logout"
PUBLIC = frozenset({LOGIN, OIDC_START, OIDC_CALLBACK})


class Cookies:
    """Names and attributes of the cookies.

    `__Host-`: browsers take such a cookie over TLS alone, and from this host alone.
    """

    def __init__(self, url: str) -> None:
        self._secure = url.startswith("https:")
        prefix = "__Host-" if self._secure else ""
        self.session, self.oidc = f"{prefix}spotd-session", f"{prefix}spotd-oidc"

    def set(self, response: Response, name: str, value: str, max_age_s: float) -> None:
        """Set a cookie that no script reads and no form of another site sends.

        Lax rather than Strict: a link in a message, and the way back from an identity provider,
        arrive logged in. No GET changes anything.
        """
        response.set_cookie(
            name, value, max_age=int(max_age_s), path="/", secure=self._secure,
            httponly=True, samesite="lax",
        )  # fmt: skip

    def clear(self, response: Response, name: str) -> None:
        """Delete a cookie."""
        response.delete_cookie(name, path="/", secure=self._secure, httponly=True, samesite="lax")


class LoginEndpoints:
    """Log in by a token or at an identity provider, and log out."""

    def __init__(
        self,
        logins: Logins,
        clock: Clock,
        cookies: Cookies,
        *,
        session_s: float,
        tokens: bool,
        oidc: OidcLogin | None,
    ) -> None:
        self._logins = logins
        self._failures = LoginLimit(clock)
        self._starts = LoginLimit(clock, STARTS)
        self._successes = LoginLimit(clock, LOGINS)
        self._cookies = cookies
        self._session_s = session_s
        self._tokens = tokens
        self._oidc = oidc

    def routes(self) -> list[Route]:
        """Return the routes of all endpoints."""
        return [
            Route(LOGIN, self._page, methods=["GET"]),
            Route(LOGIN, self._with_token, methods=["POST"]),
            Route(OIDC_START, self._start_oidc, methods=["GET"]),
            Route(OIDC_CALLBACK, self._finish_oidc, methods=["GET"]),
            Route(LOGOUT, self._logout, methods=["POST"]),
        ]

    async def _page(self, request: Request) -> Response:
        return self._form(safe_path(request.query_params.get("next", "")))

    async def _with_token(self, request: Request) -> Response:
        form: Mapping[str, str] = request.scope["form"]
        then, address = safe_path(form.get("next", "")), _address(request)
        if (wait_s := self._failures.wait_s(address)) > 0:
            return self._wait(then, "Too many failed logins", wait_s)
        token = None
        if self._tokens:
            token = await run_in_threadpool(self._logins.check_token, form.get("token", ""))
        if token is None:
            self._failures.add(address)
            return self._form(then, "This token is not known, was revoked or has expired.", 401)
        person = Person(token.name, token.account, token.role)
        return await self._enter(request, person, token, then)

    async def _start_oidc(self, request: Request) -> Response:
        then = safe_path(request.query_params.get("next", ""))
        if self._oidc is None:
            return self._form(then, "No identity provider is configured.", 404)
        address = _address(request)
        if (wait_s := self._starts.wait_s(address)) > 0:
            return self._wait(then, "Too many logins were started", wait_s)
        self._starts.add(address)
        try:
            url, browser = await run_in_threadpool(self._oidc.begin, then)
        except UserError as error:
            return self._form(then, f"{error.text}. Try: {error.try_}", 502)
        response = RedirectResponse(url, 303)
        self._cookies.set(response, self._cookies.oidc, browser, PENDING_S)
        return response

    async def _finish_oidc(self, request: Request) -> Response:
        if self._oidc is None:
            return self._form("/", "No identity provider is configured.", 404)
        browser, query = request.cookies.get(self._cookies.oidc, ""), dict(request.query_params)
        address = _address(request)
        if (wait_s := self._failures.wait_s(address)) > 0:
            return self._wait("/", "Too many failed logins", wait_s)
        try:
            # Another site can send a browser here: what did not begin in it is not its failure.
            pending = self._oidc.take(query, browser)
        except UserError as error:
            return self._form("/", f"{error.text}. Try: {error.try_}", 403)
        try:
            person = await run_in_threadpool(self._oidc.finish, query, pending)
        except UserError as error:
            if error.exit_code is ExitCode.AUTH:
                self._failures.add(address)
            return self._form("/", f"{error.text}. Try: {error.try_}", 403)
        response = await self._enter(request, person, None, pending.then)
        self._cookies.clear(response, self._cookies.oidc)
        return response

    async def _logout(self, request: Request) -> Response:
        secret = request.cookies.get(self._cookies.session, "")
        await run_in_threadpool(self._logins.end, secret)
        response = RedirectResponse(LOGIN, 303)
        self._cookies.clear(response, self._cookies.session)
        return response

    async def _enter(
        self, request: Request, person: Person, token: UserToken | None, then: str
    ) -> Response:
        """Begin the session of a person, and end the one that this browser had."""
        if (wait_s := self._successes.wait_s(person.name)) > 0:
            return self._wait(then, "Too many logins", wait_s)
        self._successes.add(person.name)
        address = _address(request)
        secret = await run_in_threadpool(self._logins.begin, person, token, address)
        if secret is None:
            return self._form(then, "This token was revoked just now.", 401)
        if old := request.cookies.get(self._cookies.session, ""):
            await run_in_threadpool(self._logins.end, old)
        response = RedirectResponse(then, 303)
        self._cookies.set(response, self._cookies.session, secret, self._session_s)
        return response

    def _wait(self, then: str, problem: str, wait_s: float) -> Response:
        response = self._form(then, f"{problem}. Try again in a minute.", 429)
        response.headers["Retry-After"] = str(int(wait_s) + 1)
        return response

    def _form(self, then: str, problem: str = "", status: int = 200) -> Response:
        parts: list[Html] = []
        if problem:
            parts.append(el("p", problem, cls="refused", role="alert"))
        if self._oidc is not None:
            href = f"{OIDC_START}?next={quote(then, safe='')}"
            parts.append(
                el("p", el("a", "Log in at the identity provider", href=href, cls="button"))
            )
        if self._tokens:
            parts.append(_token_form(then))
        return HTMLResponse(document("Log in", *parts), status)


def _token_form(then: str) -> Html:
    token = el(
        "input",
        type="password",
        name="token",
        id="token",
        required=True,
        autocomplete="current-password",
    )
    return el(
        "form",
        # For password managers, which want a name beside a secret.
        el("input", name="user", value="spotd", autocomplete="username", hidden=True, id="user",
           aria_label="User"),
        el("label", "Token", for_="token"),
        token,
        el("input", type="hidden", name="next", value=then),
        el("button", "Log in", type="submit"),
        el("p", "An admin makes one: ", el("code", "spotctl user token NAME"), cls="note"),
        method="post",
        action=LOGIN,
    )  # fmt: skip


def document(title: str, *children: Html) -> str:
    """Return a page without navigation and data, for people who are not logged in."""
    head = join(
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", f"{title} · spotd"),
        el("link", rel="stylesheet", href="/static/dash.css"),
        el("link", rel="icon", href="/static/icon.svg"),
    )
    header = el("header", el("span", "spotd", cls="brand"))
    card = el("section", *children, cls="card login")
    body = el("body", header, el("main", el("h1", title), card, id="main"))
    return f"<!doctype html>\n{el('html', el('head', head), body, lang='en')}\n"


def safe_path(path: str) -> str:
    """Return a path of this site; anything else is the first page."""
    local = path.startswith("/") and not path.startswith(("//", "/\\"))
    return path if local and path.isprintable() else "/"


def _address(request: Request) -> str:
    return plain_address(request.client.host) if request.client else ""
