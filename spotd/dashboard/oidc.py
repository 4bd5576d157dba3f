"""Login at an OpenID Connect provider: authorization code with PKCE, state and nonce.

Authlib makes the requests and checks the ID token; it is imported where a provider is configured.
"""

from __future__ import annotations

import hmac
import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spotd.api_routes.person import Person, is_person, uid_of
from spotd.base.clock import Clock
from spotd.base.errors import ExitCode, UserError
from spotd.config.dashboard import OidcSection, is_private

# A public key signs: with a shared secret, whoever can check a token could make one.
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"]
PENDING_S = 600.0  # from the click until the provider sends the person back
LEEWAY_S = 60  # difference of clocks
_MOST_PENDING = 1000
_TIMEOUT_S = 10.0
_AGAIN = "log in again"
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")


@dataclass(frozen=True)
class PendingLogin:
    """A login that is under way at the provider, in the browser that has `browser` as a cookie."""

    browser: str
    nonce: str
    verifier: str
    then: str
    ends_s: float


class OidcLogin:
    """Logins of people at one provider. Thread-safe."""

    def __init__(self, section: OidcSection, secret: str, callback: str, clock: Clock) -> None:
        self._section = section
        self._secret = secret
        self._callback = callback
        self._clock = clock
        self._lock = threading.Lock()
        self._pending: OrderedDict[str, PendingLogin] = OrderedDict()
        self._metadata: dict[str, Any] = {}
        self._keys: dict[str, Any] = {}

    def begin(self, then: str) -> tuple[str, str]:
        """Return the provider's address for a new login, and the cookie that belongs to it.

        `then` is the page to go to afterwards. Raises UserError when the provider does not answer.
        """
        metadata = self._load_metadata()
        state, browser, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(4))
        with self._session() as session:
            url, _ = session.create_authorization_url(
                metadata["authorization_endpoint"],
                state=state,
                nonce=nonce,
                code_verifier=verifier,
            )
        ends_s = self._clock.monotonic_s() + PENDING_S
        with self._lock:
            self._pending[state] = PendingLogin(browser, nonce, verifier, then, ends_s)
            while len(self._pending) > _MOST_PENDING:
                self._pending.popitem(last=False)
        return str(url), browser

    def take(self, query: Mapping[str, str], browser: str) -> PendingLogin:
        """Return the login that the provider sends back; it is good once.

        Raises UserError for one that did not begin in this browser, or has ended.
        """
        with self._lock:
            pending = self._pending.pop(query.get("state", ""), None)
        in_time = pending is not None and pending.ends_s > self._clock.monotonic_s()
        if pending is None or not in_time:
            raise _refused("this login has expired, or did not start here")
        if not hmac.compare_digest(pending.browser.encode(), browser.encode()):
            raise _refused("this login did not start in this browser")
        return pending

    def finish(self, query: Mapping[str, str], pending: PendingLogin) -> Person:
        """Return the person whom the provider sent back.

        Raises UserError for a login that the provider refused, whose ID token is not right, or of
        somebody who may not log in here.
        """
        if "error" in query:
            text = query.get("error_description") or query["error"]
            raise _refused(f"the identity provider refuses: {text[:200]}")
        if query.get("iss", self._section.issuer) != self._section.issuer:
            raise _refused("another identity provider answers")
        return self._person(self._fetch_claims(query.get("code", ""), pending))

    def _fetch_claims(self, code: str, pending: PendingLogin) -> Mapping[str, Any]:
        """Exchange the code and return the claims of the ID token. Raises UserError."""
        from authlib.common.errors import AuthlibBaseError
        from joserfc.errors import JoseError
        from requests import RequestException

        endpoint = self._load_metadata()["token_endpoint"]
        try:
            with self._session() as session:
                token = session.fetch_token(
                    endpoint, grant_type="authorization_code", code=code,
                    code_verifier=pending.verifier, timeout=_TIMEOUT_S,
                )  # fmt: skip
            return self._check_id_token(token, pending.nonce)
        except RequestException as error:
            raise _unreachable(self._section.issuer, error) from None
        except (AuthlibBaseError, JoseError, KeyError, TypeError, ValueError) as error:
            raise _refused(f"the identity provider's answer is not valid: {error}"[:300]) from None

    def _check_id_token(self, token: Mapping[str, Any], nonce: str) -> Mapping[str, Any]:
        """Check signature, issuer, audience, times and nonce. Raises JoseError, KeyError."""
        from authlib.oidc.core import CodeIDToken
        from joserfc import jwt
        from joserfc.errors import InvalidKeyIdError
        from joserfc.jwk import KeySet

        raw = token["id_token"]
        try:
            decoded = jwt.decode(raw, KeySet.import_key_set(self._load_keys()), ALGORITHMS)
        except (InvalidKeyIdError, ValueError):  # the provider has another key by now
            keys = KeySet.import_key_set(self._load_keys(anew=True))
            decoded = jwt.decode(raw, keys, ALGORITHMS)
        client_id = self._section.client_id
        claims = CodeIDToken(
            decoded.claims,
            decoded.header,
            {
                "iss": {"essential": True, "value": self._section.issuer},
                "aud": {"essential": True, "value": client_id},
            },
            {"nonce": nonce, "client_id": client_id, "access_token": token.get("access_token")},
        )
        claims.validate(now=self._clock.now_us() // 1_000_000, leeway=LEEWAY_S)
        return dict(claims)

    def _person(self, claims: Mapping[str, Any]) -> Person:
        """Return the person with a role by the configuration. Raises UserError."""
        section = self._section
        name = claims.get(section.name_claim) or ""
        if not name:
            raise _refused(f"the identity provider gives no {section.name_claim}")
        if not isinstance(name, str) or not is_person(name):
            text = f"{section.name_claim}: {str(name)[:100]!r} is not possible as a person's name"
            raise _refused(text, "ask the operator of spotd to set dashboard.oidc.name_claim")
        uses_email = "email" in (section.name_claim, section.role_claim)
        if uses_email and not section.trust_email and not _is_verified(claims):
            text = f"the identity provider has not verified the address {name[:100]}"
            raise _refused(text, "verify it there; or the operator of spotd sets trust_email")
        if account := section.users.get(name):
            if not is_person(account):
                raise _refused(f"{name} may not log in as {account}", "ask the operator of spotd")
            return Person(account, account=True)
        value = claims.get(section.role_claim)
        given = value if isinstance(value, list) else [value]
        values = {str(one) for one in given if isinstance(one, str) or type(one) is int}
        admin, viewer = values & {*section.admins}, values & {*section.viewers}
        if not (admin or viewer):
            raise _refused(f"{name[:100]} may not log in here", "ask the operator of spotd")
        # Somebody else's name at the provider must not become a user of the box in the audit.
        if uid_of(name) >= 0:
            text = f"{name[:100]} is also the name of a user of the box"
            raise _refused(text, "ask the operator of spotd to set dashboard.oidc.users")
        return Person(name, role="admin" if admin else "viewer")

    def _session(self) -> Any:
        from authlib.integrations.requests_client import OAuth2Session

        return OAuth2Session(
            self._section.client_id,
            self._secret or None,
            scope=" ".join(self._section.scopes),
            redirect_uri=self._callback,
            code_challenge_method="S256",
        )

    def _load_metadata(self) -> dict[str, Any]:
        """Return the provider's metadata. Raises UserError."""
        if not self._metadata:
            issuer = self._section.issuer
            metadata = _fetch_json(f"{issuer.rstrip('/')}/.well-known/openid-configuration", issuer)
            if metadata.get("issuer") != issuer:
                given = str(metadata.get("issuer"))[:200]
                text = f"the identity provider calls itself {given}, not {issuer}"
                raise UserError(text, "set dashboard.oidc.issuer to the provider's own spelling")
            for endpoint in _ENDPOINTS:
                url = metadata.get(endpoint)
                if not isinstance(url, str) or not is_private(url):
                    text = f"the identity provider gives no https address as {endpoint}"
                    raise UserError(text, "check dashboard.oidc.issuer", ExitCode.UNREACHABLE)
            self._metadata = metadata
        return self._metadata

    def _load_keys(self, *, anew: bool = False) -> Any:
        if anew or not self._keys:
            self._keys = _fetch_json(self._load_metadata()["jwks_uri"], self._section.issuer)
        return self._keys


def _is_verified(claims: Mapping[str, Any]) -> bool:
    return claims.get("email_verified") in (True, "true")


def _fetch_json(url: str, issuer: str) -> dict[str, Any]:
    import requests

    try:
        reply = requests.get(url, timeout=_TIMEOUT_S)
        reply.raise_for_status()
        data = reply.json()
    except (requests.RequestException, ValueError) as error:
        raise _unreachable(issuer, error) from None
    return data if isinstance(data, dict) else {}


def _refused(text: str, try_: str = _AGAIN) -> UserError:
    return UserError(text, try_, ExitCode.AUTH)


def _unreachable(issuer: str, error: Exception) -> UserError:
    text = f"the identity provider {issuer} does not answer: {type(error).__name__}"
    return UserError(text, "log in again in a moment, or with a token", ExitCode.UNREACHABLE)
