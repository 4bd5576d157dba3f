"""Logins to the team's dashboard: tokens, sessions, and the limit of attempts."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spotd.api.http.route_table import BY_KEY
from spotd.api.routes.tokens import digest_of
from spotd.api_client.client import Client
from spotd.api_routes import routes
from spotd.api_routes.operation import Operation
from spotd.api_routes.person import Person, is_person
from spotd.base.clock import Clock
from spotd.dashboard.actions import ACTIONS
from spotd.dashboard.components import Visitor
from spotd.domain.events import AuditOutcome
from spotd.domain.units import S
from spotd.store.audit import AuditRow
from spotd.store.interface import Store
from spotd.store.logins import LoginSession, UserToken

ATTEMPTS = 10  # failed logins of one address within a minute
STARTS = 30  # of logins of one address at the identity provider, within a minute
LOGINS = 20  # of one person within a minute
WINDOW_S = 60.0
_MOST_KEYS = 10_000
_NO_DIGEST = digest_of("")
_REPLY_S = 20.0


@dataclass
class LoginLimit:
    """Counts what each address or person did within a minute: at most `most` times. Thread-safe."""

    clock: Clock
    most: int = ATTEMPTS
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _times: OrderedDict[str, list[float]] = field(default_factory=OrderedDict)

    def wait_s(self, who: str) -> float:
        """Return the seconds until that address or person may try again; 0 for now."""
        with self._lock:
            recent = self._recent(_subscriber(who))
            if len(recent) < self.most:
                return 0
            return recent[-self.most] + WINDOW_S - self.clock.monotonic_s()

    def add(self, who: str) -> None:
        """Count once more."""
        key = _subscriber(who)
        with self._lock:
            self._times[key] = [*self._recent(key), self.clock.monotonic_s()]
            self._times.move_to_end(key)
            while len(self._times) > _MOST_KEYS:
                self._times.popitem(last=False)

    def _recent(self, key: str) -> list[float]:
        since_s = self.clock.monotonic_s() - WINDOW_S
        return [at_s for at_s in self._times.get(key, ()) if at_s > since_s]


def _subscriber(address: str) -> str:
    """Return the network that one subscriber has: of IPv6 a /64, whose addresses are free."""
    address = plain_address(address)
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    return str(ipaddress.ip_network((parsed, 64), strict=False))


def plain_address(address: str) -> str:
    """Return the IPv4 address of an IPv4-mapped IPv6 address; another as it is."""
    try:
        mapped = ipaddress.IPv6Address(address).ipv4_mapped
    except ValueError:
        return address
    return str(mapped) if mapped else address


class Logins:
    """The people who are logged in.

    `socket` is the daemon's API, which says what each of them may do. `session_h` hours after a
    login the next one is due.
    """

    def __init__(self, store: Store, clock: Clock, socket: Path, session_h: float) -> None:
        self._store = store
        self._clock = clock
        self._socket = socket
        self._session_us = int(session_h * 3600 * S)

    def check_token(self, token: str) -> UserToken | None:
        """Return the token that this is, unless it is unknown, revoked or has expired."""
        _, _, rest = token.strip().partition("spotd_")
        token_id, _, secret = rest.partition("_")
        known = self._store.logins.token(token_id) if token_id.isalnum() else None
        digest = known.digest if known else _NO_DIGEST
        right = hmac.compare_digest(digest, digest_of(secret))
        if known is None or not right or known.expires_at_us <= self._clock.now_us():
            return None
        if not is_person(known.name):  # made before such names were refused
            return None
        return known

    def begin(self, person: Person, token: UserToken | None, address: str) -> str | None:
        """Begin a session and return its secret, for the cookie.

        None when the token was revoked at this moment. The login is in the audit.
        """
        secret, now_us = secrets.token_urlsafe(32), self._clock.now_us()
        ends_us = now_us + self._session_us
        session = LoginSession(
            digest=digest_of(secret),
            name=person.name,
            account=person.account,
            role=person.role,
            token_id=token.id if token else "",
            began_at_us=now_us,
            expires_at_us=min(ends_us, token.expires_at_us) if token else ends_us,
        )
        if not self._store.logins.begin_session(session):
            return None
        way = f"token {token.id}" if token else "identity provider"
        text = f"dashboard: {way}, from {address}"
        row = AuditRow(now_us, -1, person.name, "login", "", AuditOutcome.DONE, text)
        self._store.audit.add(row)
        return secret

    def person(self, secret: str) -> Person | None:
        """Return the person of a session, unless it has ended."""
        if not secret:
            return None
        session = self._store.logins.find_session(digest_of(secret), self._clock.now_us())
        if session is None or not is_person(session.name):
            return None
        return Person(session.name, session.account, session.role, session.token_id)

    def end(self, secret: str) -> None:
        """Log out."""
        self._store.logins.end_session(digest_of(secret))

    def client(self, person: Person) -> Client:
        """Return a client of the API with the rights of that person."""
        return Client(self._socket, reply_s=_REPLY_S, person=person)

    def visitor(self, person: Person, secret: str) -> Visitor:
        """Return the person with the actions that the API permits.

        Raises UserError (auth) for somebody who may not even look.
        """
        granted = self.client(person).call(routes.WHO_AM_I())["permissions"]
        allowed = [name for name, action in ACTIONS.items() if _need(action.operation) in granted]
        return Visitor(person.name, csrf_of(secret), frozenset(allowed))


def _need(operation: Operation[...]) -> str:
    """Return the permission that the API requires for an operation."""
    return BY_KEY[operation.method, operation.path].permission.value


def csrf_of(secret: str) -> str:
    """Return the token that the forms of a session carry; it does not give the session away."""
    return hmac.new(secret.encode(), b"csrf", hashlib.sha256).hexdigest()


def has_csrf(form: Mapping[str, str], secret: str) -> bool:
    """Return whether a form is from a page of this session."""
    return hmac.compare_digest(form.get("csrf", "").encode(), csrf_of(secret).encode())
