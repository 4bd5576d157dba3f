"""Routes about users: list, disable and enable them."""

from __future__ import annotations

from typing import Any

from spotd.api.request.request import ApiRequest, conflict, not_found, user_disabled
from spotd.api.routes.tokens import token_data
from spotd.api.views.resources import iso
from spotd.api_routes.person import is_person, uid_of
from spotd.store.errors import NoSuccessorError
from spotd.store.users import DisabledUser


def list_users(call: ApiRequest) -> dict[str, Any]:
    """List the users with unfinished jobs, and the disabled users."""
    store = call.context.store
    owners = list(store.jobs.owners().values())
    disabled = {row.name: row for row in store.users.disabled()}
    items = [
        {
            "name": name,
            "disabled": name in disabled,
            "jobs": owners.count(name),
            "disabled_at": iso(disabled[name].disabled_at_us) if name in disabled else None,
            "disabled_by": disabled[name].disabled_by if name in disabled else "",
        }
        for name in sorted({*owners, *disabled} - {""})
    ]
    return {"kind": "UserList", "items": items}


def disable_user(call: ApiRequest) -> dict[str, Any]:
    """Remove a person's access to the API, the dashboard and every machine, at once.

    `transfer_to` gets the jobs. Tokens that this person made for others are revoked. The name may
    be unknown: `known` says whether anything has this name.
    """
    store, name, successor = call.context.store, call.path["name"], call.text("transfer_to")
    uid = uid_of(name)
    known = _is_known(call, name)
    if not known and not is_person(name):
        raise not_found(f"there is no user {name[:60]!r}", "spotctl user ls")
    if name == call.actor or call.context.users.is_trusted(uid):
        message = f"{name} cannot be disabled by {call.actor}"
        raise conflict(message, "root, the daemon's own user and yourself cannot be disabled")
    if successor and (successor == name or uid_of(successor) < 0 or _is_disabled(call, successor)):
        raise not_found(
            f"{successor[:60]!r} cannot take over jobs", "name another user of this box"
        )
    row = DisabledUser(name, uid, call.now_us, call.actor, successor)
    try:
        moved = store.users.disable(row)
    except NoSuccessorError as error:
        raise conflict(str(error), f"spotctl user disable {name} --transfer-to SOMEBODY") from None
    ended = store.logins.end_access(name)
    results = call.context.users.end_access_of_disabled_users()
    return {
        "kind": "User",
        "name": name,
        "disabled": True,
        "known": known or ended.sessions > 0,
        "sessions": ended.sessions,
        "revoked_tokens": [token_data(token, call.now_us) for token in ended.tokens],
        "jobs": moved,
        "transferred_to": successor,
        "machines": sorted(node for node, why in results.items() if not why),
        "unreachable": {node: why for node, why in sorted(results.items()) if why},
    }


def enable_user(call: ApiRequest) -> dict[str, Any]:
    """Allow a user's access again. Jobs stay with their new users, and machines need a new
    login."""
    name = call.path["name"]
    if not call.context.store.users.enable(name):
        raise not_found(f"{name[:60]!r} is not disabled", "spotctl user ls")
    return {"kind": "User", "name": name, "disabled": False}


def check_enabled(call: ApiRequest) -> None:
    """Raise ApiError when the caller was disabled just now."""
    if _is_disabled(call, call.actor):
        raise user_disabled(call.actor)


def _is_disabled(call: ApiRequest, name: str) -> bool:
    return any(row.name == name for row in call.context.store.users.disabled())


def _is_known(call: ApiRequest, name: str) -> bool:
    """Return whether an account, a job, a token or a disabled user has that name."""
    store = call.context.store
    return (
        uid_of(name) >= 0
        or name in store.jobs.owners().values()
        or any(name in (token.name, token.made_by) for token in store.logins.tokens())
        or _is_disabled(call, name)
    )
