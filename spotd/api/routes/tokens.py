"""Routes about tokens for the dashboard, and about the rights of the caller."""

from __future__ import annotations

import hashlib
from typing import Any

from spotd.api.request.request import ApiRequest, bad_input, not_found
from spotd.api.views.resources import iso
from spotd.api_routes.person import ROLES, is_person, uid_of
from spotd.domain.units import S
from spotd.store.logins import UserToken

LIFETIME_S = 90 * 86_400
_LEAST_S, _MOST_S = 60, 366 * 86_400


def who_am_i(call: ApiRequest) -> dict[str, Any]:
    """Return the caller's name and permissions."""
    return {"kind": "Caller", "name": call.actor, "permissions": list(call.allowed())}


def list_tokens(call: ApiRequest) -> dict[str, Any]:
    """List the tokens for the dashboard, without the tokens themselves."""
    return {
        "kind": "TokenList",
        "items": [token_data(token, call.now_us) for token in call.context.store.logins.tokens()],
    }


def make_token(call: ApiRequest) -> dict[str, Any]:
    """Make a token with which that person logs in to the dashboard. It is shown only this once.

    `role` limits the rights that a user of this box has by groups. A person without an account here
    needs a role.
    """
    name, role = call.path["name"], call.text("role")
    if not is_person(name) or call.context.users.is_trusted(uid_of(name)):
        text = f"{name[:60]!r} is not possible as a name of a person"
        fix = "use letters, digits and . _ @ + -, as ada or ada@example.org, and no system's user"
        raise bad_input(text, fix)
    if role not in ("", *ROLES):
        raise bad_input(f"role: {role[:60]!r} is no role", f"one of {', '.join(ROLES)}")
    account = uid_of(name) >= 0
    if not account and not role:
        text = f"{name} has no account on the daemon's box, so its groups say nothing"
        raise bad_input(text, f"spotctl user token {name} --role viewer (or admin)")
    lifetime_s = call.number("lifetime_s", LIFETIME_S, _LEAST_S, _MOST_S)
    ids = call.context.ids
    token_id, secret = ids.random_bytes(4).hex(), ids.random_bytes(32).hex()
    token = UserToken(
        id=token_id,
        name=name,
        account=account,
        role=role,
        digest=digest_of(secret),
        made_at_us=call.now_us,
        made_by=call.actor,
        expires_at_us=call.now_us + lifetime_s * S,
    )
    call.context.store.logins.add_token(token)
    data = token_data(token, call.now_us)
    return {"kind": "Token", **data, "token": f"spotd_{token_id}_{secret}"}


def revoke_token(call: ApiRequest) -> dict[str, Any]:
    """Revoke a token, and end all sessions that it started."""
    token_id, logins = call.path["name"], call.context.store.logins
    token = logins.token(token_id)
    if token is None or not logins.revoke_token(token_id):
        raise not_found(f"there is no token {token_id[:60]!r}", "spotctl user tokens")
    return {"kind": "Token", **token_data(token, call.now_us)}


def digest_of(secret: str) -> str:
    """Return the stored digest of a secret of 256 random bits, for which a slow hash adds no
    safety."""
    return hashlib.sha256(secret.encode()).hexdigest()


def token_data(token: UserToken, now_us: int) -> dict[str, Any]:
    """Return a token for a reply, without its secret, which is not stored."""
    return {
        "id": token.id,
        "user": token.name,
        "account": token.account,
        "role": token.role,
        "made_at": iso(token.made_at_us),
        "made_by": token.made_by,
        "expires_at": iso(token.expires_at_us),
        "expired": token.expires_at_us <= now_us,
    }
