"""Authorization and audit in front of every route.

A change is in the audit before it is tried. When the audit cannot be written, nothing is tried, so
that the audit knows of every change.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import structlog
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spotd.api.http.permissions import NOBODY, Peer, Permissions, find_peer, peer_of
from spotd.api.http.refusals import Refusals
from spotd.api.http.route import ApiRoute, Permission
from spotd.api.http.route_table import BY_KEY
from spotd.api.request.context import ApiContext
from spotd.api.request.request import ApiError, bad_input, user_disabled
from spotd.api_routes.person import HEADER, parse_person
from spotd.domain.events import AuditOutcome
from spotd.store.audit import AuditRow
from spotd.store.columns import clean
from spotd.store.errors import StoreError

log = structlog.get_logger(__name__)

MAX_TEXT = 500  # characters of caller input in one audit line


class AuthMiddleware:
    """ASGI middleware that admits or refuses each request.

    `routes` are the application's, made from `route_table`. `refusal(request, error)` makes the
    reply of a refused request. Raises ValueError for a route that is not in the table.
    """

    def __init__(
        self,
        app: ASGIApp,
        context: ApiContext,
        permissions: Permissions,
        routes: Sequence[BaseRoute],
        refusal: Callable[[Request, Exception], Response],
    ) -> None:
        self._app = app
        self._context = context
        self._permissions = permissions
        self._routes = [_in_table(route) for route in routes]
        self._refusal = refusal
        self._refusals = Refusals(self._write)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match = self._find_route(scope)
        if match is None:  # no such route: the router replies with 404
            await self._app(scope, receive, send)
            return
        route, target = match
        try:
            peer = await run_in_threadpool(self._admit, scope, route, target)
        except Exception as error:  # noqa: BLE001 - reported like any other error
            await self._refusal(Request(scope), error)(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["peer"], state["still_in"] = peer, partial(self._check_enabled, peer)
        state["allowed"] = partial(self._permissions.allowed, peer)
        if route.permission is Permission.READ:
            await self._app(scope, receive, send)
            return
        await self._change(_Change(peer, route, target, self._context), scope, receive, send)

    async def _change(self, change: _Change, scope: Scope, receive: Receive, send: Send) -> None:
        """Record the attempt, try the change, record the outcome, and only then reply."""
        try:
            await run_in_threadpool(change.record_attempt)
        except Exception as error:  # noqa: BLE001
            await self._refusal(Request(scope), error)(scope, receive, send)
            return
        reply = _Reply(change, send)
        try:
            await self._app(scope, receive, reply.receive)
        finally:
            await reply.record_outcome()
        await reply.release()

    def _find_route(self, scope: Scope) -> tuple[ApiRoute, str] | None:
        if scope["type"] != "http":
            return None
        for path_route in self._routes:
            match, child = path_route.matches(scope)
            if match is Match.FULL:
                path, method = path_route.path, scope["method"]
                route = BY_KEY.get((method, path)) or BY_KEY["GET", path]  # HEAD of a GET
                return route, "/".join(map(str, child["path_params"].values()))[:MAX_TEXT]
        return None

    def _admit(self, scope: Scope, route: ApiRoute, target: str) -> Peer:
        """Return the caller. Raises ApiError after recording the refusal."""
        peer = _peer(scope)
        self._flush_refusals()
        try:
            peer = self._represented(peer, Request(scope).headers.get(HEADER, ""))
            self._check_enabled(peer)
            self._permissions.check(peer, route.permission)
        except ApiError as error:
            action = route.action or clean(f"{scope['method']} {scope['path']}"[:MAX_TEXT])
            row = _row(peer, action, target, AuditOutcome.REFUSED)
            row = replace(row, text=_via(peer, error.text))
            self._refusals.add(row, self._context.clock.now_us())
            raise
        return peer

    def _represented(self, peer: Peer, header: str) -> Peer:
        """Return the person that the dashboard sends the request for, if it names one.

        The dashboard is part of the daemon. Others cannot speak for anybody: ApiError.
        """
        if not header:
            return peer
        try:
            person = parse_person(header)
        except ValueError as error:
            raise bad_input(str(error), "log in to the dashboard again") from None
        if peer.uid not in self._permissions.trusted:
            message = f"{peer.name} may not speak for {person.name}"
            raise ApiError(403, "auth", message, "use spotctl as yourself")
        return peer_of(person)

    def _flush_refusals(self) -> None:
        """Write pending refusals; without the database, requests that do not need it still work."""
        try:
            self._refusals.flush(self._context.clock.now_us())
        except StoreError as error:
            log.warning("refusals are not on record yet", error=str(error))

    def _check_enabled(self, peer: Peer) -> None:
        """Raise ApiError for a user that is disabled, by name or by uid."""
        if peer.uid in self._permissions.trusted:
            return
        for row in self._context.store.users.disabled():
            if peer.name == row.name or (peer.uid >= 0 and peer.uid == row.uid):
                raise user_disabled(peer.name)

    def _write(self, row: AuditRow) -> None:
        context = self._context
        context.store.audit.add(replace(row, at_us=context.clock.now_us()))


@dataclass
class _Change:
    """One request that changes something, with its audit lines."""

    peer: Peer
    route: ApiRoute
    target: str
    context: ApiContext
    request: str = ""

    def record_attempt(self) -> None:
        """Record that the change is tried now."""
        self.request = self.context.ids.token()
        self._write(AuditOutcome.ASKED, "")

    def record_outcome(self, reply: _Reply) -> None:
        """Record the outcome that the caller receives.

        If the database has become unavailable meanwhile, only the request is on record: it must not
        look done or refused.
        """
        try:
            self._write(*self._outcome(reply))
        except StoreError as error:
            log.warning("the audit lacks an outcome", request=self.request, error=str(error))

    def _outcome(self, reply: _Reply) -> tuple[AuditOutcome, str]:
        data = reply.data()
        if reply.status and reply.status < 400:
            fields = [f"{name}={data[name]}" for name in self.route.reply_fields if name in data]
            return AuditOutcome.DONE, " ".join(fields)
        error = data.get("error")
        message = str(error.get("text", "")) if isinstance(error, dict) else ""
        refused = 400 <= reply.status < 500
        return AuditOutcome.REFUSED if refused else AuditOutcome.FAILED, message

    def _write(self, outcome: AuditOutcome, message: str) -> None:
        row = _row(self.peer, self.route.action, self.target, outcome)
        now_us = self.context.clock.now_us()
        message = _via(self.peer, message)[:MAX_TEXT]
        complete_row = replace(row, at_us=now_us, text=message, request=self.request)
        self.context.store.audit.add(complete_row)


class _Reply:
    """A reply that is held back until the outcome of the change is recorded.

    A large reply is recorded when it begins, and its parts are then passed on at once.
    """

    def __init__(self, change: _Change, send: Send) -> None:
        self.messages: list[Message] = []
        self._change = change
        self._send = send
        self._recorded = False

    async def receive(self, message: Message) -> None:
        self.messages.append(message)
        if self._recorded or (self._change.route.large and self.status < 400):
            await self.record_outcome()
            await self.release()

    async def record_outcome(self) -> None:
        """Record the outcome, once."""
        if not self._recorded:
            self._recorded = True
            await run_in_threadpool(self._change.record_outcome, self)

    async def release(self) -> None:
        """Send the messages that were held back."""
        while self.messages:
            await self._send(self.messages.pop(0))

    @property
    def status(self) -> int:
        """The HTTP status; 0 when there is no reply."""
        return int(self.messages[0]["status"]) if self.messages else 0

    def data(self) -> Mapping[str, Any]:
        try:
            value = json.loads(b"".join(m.get("body", b"") for m in self.messages))
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}


def _row(peer: Peer, action: str, target: str, outcome: AuditOutcome) -> AuditRow:
    return AuditRow(0, peer.uid, peer.name, action, target, outcome)


def _via(peer: Peer, text: str) -> str:
    """Return the text for the audit, which begins with the origin of the request."""
    return ": ".join(filter(None, (peer.via, text)))


def _peer(scope: Scope) -> Peer:
    """Return the caller, which `server.PeerProtocol` stores as the client address.

    A request from elsewhere has the caller NOBODY.
    """
    host = (scope.get("client") or ("", 0))[0]
    return find_peer(int(host.removeprefix("uid:"))) if host.startswith("uid:") else NOBODY


def _in_table(route: BaseRoute) -> Route:
    """Return the route if `route_table` has it. Raises ValueError."""
    if not isinstance(route, Route):
        raise ValueError(f"{route!r} is not a route of the table")
    for method in (route.methods or set()) - {"HEAD"}:
        if (method, route.path) not in BY_KEY:
            raise ValueError(f"{method} {route.path} is not a route of api/http/route_table.py")
    return route
