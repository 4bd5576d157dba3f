"""Routes about the deployment's secrets for its jobs, and about the key that encrypts them.

A job that names a secret gets its value when it starts on a machine. So a changed value reaches
running jobs with their next machine. The API accepts values and never returns them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from spotd.api.request.request import ApiRequest, bad_input, conflict, not_found
from spotd.api.views.resources import iso
from spotd.security.master_key import MasterKeyError
from spotd.security.secrets import SecretBox, seal_secrets
from spotd.store.errors import StaleKeyError
from spotd.store.secrets import SecretRow

MAX_VALUE_BYTES = 64 << 10
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")

T = TypeVar("T")


def with_current_key(vault: SecretBox, store_sealed: Callable[[], T]) -> T:
    """Run `store_sealed()`, which encrypts and stores; retry once if the key changed in between."""
    try:
        return store_sealed()
    except StaleKeyError:
        vault.refresh()
        return store_sealed()


def list_secrets(call: ApiRequest) -> dict[str, Any]:
    """The names of the secrets, with the user who set each and the time."""
    rows = call.context.store.secrets.rows()
    items = [{"name": r.name, "set_at": iso(r.set_at_us), "set_by": r.set_by} for r in rows]
    return {"kind": "SecretList", "items": items}


def set_secret(call: ApiRequest) -> dict[str, Any]:
    """Store `value` under the name in the path, replacing an earlier value."""
    name, value = call.path["name"], call.text("value")
    if not _NAME.fullmatch(name) or name.startswith("SPOTD_"):
        fix = "use up to 128 letters, digits and _, not starting with a digit or SPOTD_"
        raise bad_input(f"{name[:60]!r} is not a name of a secret", fix)
    if not value or len(value.encode()) > MAX_VALUE_BYTES or "\0" in value:
        limit = MAX_VALUE_BYTES >> 10
        message = f"the value of {name} is empty, has a zero byte, or more than {limit} KiB"
        raise bad_input(message, f"spotctl secret set {name} < FILE")
    store, vault = call.context.store, call.context.vault

    def store_sealed() -> None:
        epoch = vault.epoch
        [sealed] = seal_secrets(vault, "", {name: value}).values()
        store.secrets.put(SecretRow(name, call.now_us, call.actor), sealed, epoch)

    with_current_key(vault, store_sealed)
    return {"kind": "Secret", "name": name}


def remove_secret(call: ApiRequest) -> dict[str, Any]:
    """Delete a secret. Refused while an unfinished job needs it to restart."""
    name, store = call.path["name"], call.context.store
    users = [
        job.name
        for job in store.jobs.rows(finished=False)
        if name in job.spec.program.secrets and name not in store.jobs.secrets(job.id)
    ]
    if users:
        message = f"{name} is needed by {', '.join(sorted(users))}"
        raise conflict(message, "cancel these jobs first, or set another value")
    if not store.secrets.delete(name):
        raise not_found(f"there is no secret {name[:60]!r}", "spotctl secret ls")
    return {"kind": "Secret", "name": name}


def rotate_key(call: ApiRequest) -> dict[str, Any]:
    """Switch to the next master key: see `spotd.security.secrets.rotate`. `unread` are the values
    that it left."""
    try:
        unread = call.context.rotate_key()
    except StaleKeyError:
        raise conflict(
            "another spotd on this database has just changed the key", "spotctl doctor"
        ) from None
    except MasterKeyError as error:
        raise conflict(error.text, error.try_) from None
    return {"kind": "KeyRotation", "epoch": call.context.vault.epoch, "unread": unread}
