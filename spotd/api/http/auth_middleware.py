"""In front of every route: is the caller allowed, and what is put on record of it.

A change is on record before it is tried. When that cannot be written, nothing is tried: there is no
change that the audit knows nothing of.
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

from spotd.api.http.permissions import NOBODY, RULES, Peer, Permission, Permissions, Rule, find_peer
from spotd.api.http.refusals import Refusals
from spotd.api.request.request import ApiContext, ApiError, shut_out
from spotd.store.columns import clean
from spotd.store.interface import AuditOutcome, AuditRow, StoreError

log = structlog.get_logger(__name__)

MAX_TEXT = 500  # of what a caller wrote, in a line of the audit


class AuthMiddleware:
    """ASGI middleware. `refusal(request, error)` makes the reply of a request that goes no further.

    Raises ValueError when it is made for a route that no rule knows.
    """

    def __init__(
        self,
        app: ASGIApp,
        backing: ApiContext,
        authority: Permissions,
        routes: Sequence[BaseRoute],
        refusal: Callable[[Request, Exception], Response],
    ) -> None:
        self._app = app
        self._backing = backing
        self._authority = authority
        self._routes = [_known(route) for route in routes]
        self._refusal = refusal
        self._refusals = Refusals(self._write)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._find(scope)
        if found is None:  # no such route: the router says so
            await self._app(scope, receive, send)
            return
        rule, target = found
        try:
            peer = await run_in_threadpool(self._admit, scope, rule, target)
        except Exception as error:  # noqa: BLE001 - told as any other
            await self._refusal(Request(scope), error)(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["peer"], state["still_in"] = peer, partial(self._check_enabled, peer)
        if rule.need is Permission.READ:
            await self._app(scope, receive, send)
            return
        await self._change(_Change(peer, rule, target, self._backing), scope, receive, send)

    async def _change(self, change: _Change, scope: Scope, receive: Receive, send: Send) -> None:
        """On record, tried, and on record how it ended; only then the caller hears of it."""
        try:
            await run_in_threadpool(change.ask)
        except Exception as error:  # noqa: BLE001
            await self._refusal(Request(scope), error)(scope, receive, send)
            return
        reply = _Reply(change, send)
        try:
            await self._app(scope, receive, reply.take)
        finally:
            await reply.settle()
        await reply.let_go()

    def _find(self, scope: Scope) -> tuple[Rule, str] | None:
        if scope["type"] != "http":
            return None
        for route in self._routes:
            match, child = route.matches(scope)
            if match is Match.FULL:
                verb = scope["method"]
                rule = RULES.get((verb, route.path)) or RULES["GET", route.path]  # HEAD of a GET
                return rule, "/".join(map(str, child["path_params"].values()))[:MAX_TEXT]
        return None

    def _admit(self, scope: Scope, rule: Rule, target: str) -> Peer:
        """Raises ApiError, which is on record then."""
        peer = _peer(scope)
        self._settle()
        try:
            self._check_enabled(peer)
            self._authority.check(peer, rule.need)
        except ApiError as error:
            action = rule.action or clean(f"{scope['method']} {scope['path']}"[:MAX_TEXT])
            row = _row(peer, action, target, AuditOutcome.REFUSED)
            self._refusals.add(replace(row, text=error.text), self._backing.clock.now_us())
            raise
        return peer

    def _settle(self) -> None:
        """A database that is away keeps nobody from what needs none."""
        try:
            self._refusals.settle(self._backing.clock.now_us())
        except StoreError as error:
            log.warning("refusals are not on record yet", error=str(error))

    def _check_enabled(self, peer: Peer) -> None:
        """Raises ApiError for one who is shut out, by name or by number."""
        if peer.uid in self._authority.trusted:
            return
        for row in self._backing.store.disabled_users():
            if peer.name == row.name or peer.uid == row.uid:
                raise shut_out(peer.name)

    def _write(self, row: AuditRow) -> None:
        backing = self._backing
        backing.store.add_audit(replace(row, at_us=backing.clock.now_us()))


@dataclass
class _Change:
    """One request that changes something."""

    peer: Peer
    rule: Rule
    target: str
    backing: ApiContext
    request: str = ""

    def ask(self) -> None:
        """Put on record that it is tried now."""
        self.request = self.backing.ids.token()
        self._write(AuditOutcome.ASKED, "")

    def end(self, reply: _Reply) -> None:
        """Put on record what the caller is told. When the database has gone away meanwhile, the
        record ends with what was asked: nobody may take it for done or for refused."""
        try:
            self._write(*self._outcome(reply))
        except StoreError as error:
            log.warning("the audit lacks an outcome", request=self.request, error=str(error))

    def _outcome(self, reply: _Reply) -> tuple[AuditOutcome, str]:
        data = reply.data()
        if reply.status and reply.status < 400:
            told = [f"{name}={data[name]}" for name in self.rule.told if name in data]
            return AuditOutcome.DONE, " ".join(told)
        error = data.get("error")
        text = str(error.get("text", "")) if isinstance(error, dict) else ""
        refused = 400 <= reply.status < 500
        return AuditOutcome.REFUSED if refused else AuditOutcome.FAILED, text

    def _write(self, outcome: AuditOutcome, text: str) -> None:
        row = _row(self.peer, self.rule.action, self.target, outcome)
        now_us = self.backing.clock.now_us()
        whole = replace(row, at_us=now_us, text=text[:MAX_TEXT], request=self.request)
        self.backing.store.add_audit(whole)


class _Reply:
    """Holds a reply back until it is on record how the change ended. A large one is on record when
    it begins, and passes from then on as it comes."""

    def __init__(self, change: _Change, send: Send) -> None:
        self.messages: list[Message] = []
        self._change = change
        self._send = send
        self._settled = False

    async def take(self, message: Message) -> None:
        self.messages.append(message)
        if self._settled or (self._change.rule.large and self.status < 400):
            await self.settle()
            await self.let_go()

    async def settle(self) -> None:
        """Put on record how it ended, once."""
        if not self._settled:
            self._settled = True
            await run_in_threadpool(self._change.end, self)

    async def let_go(self) -> None:
        """Pass on what was held back."""
        while self.messages:
            await self._send(self.messages.pop(0))

    @property
    def status(self) -> int:
        """0 when there is no reply."""
        return int(self.messages[0]["status"]) if self.messages else 0

    def data(self) -> Mapping[str, Any]:
        try:
            value = json.loads(b"".join(m.get("body", b"") for m in self.messages))
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}


def _row(peer: Peer, action: str, target: str, outcome: AuditOutcome) -> AuditRow:
    return AuditRow(0, peer.uid, peer.name, action, target, outcome)


def _peer(scope: Scope) -> Peer:
    """See `server.PeerProtocol`; whoever comes another way is nobody."""
    host = (scope.get("client") or ("", 0))[0]
    return find_peer(int(host.removeprefix("uid:"))) if host.startswith("uid:") else NOBODY


def _known(route: BaseRoute) -> Route:
    """Raises ValueError."""
    if not isinstance(route, Route):
        raise ValueError(f"{route!r} is no route that a rule can name")
    for method in (route.methods or set()) - {"HEAD"}:
        if (method, route.path) not in RULES:
            raise ValueError(
                f"no rule says who may {method} {route.path}: see api/http/permissions.py"
            )
    return route
