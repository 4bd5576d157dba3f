"""The expiry tag of a machine, moved on. Azure replaces all tags of a machine at once, so the
change is made of what was read, and counts only where nobody has changed it since (ETag)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from providers.azure.clients import Clients
from providers.azure.codes import EXISTS, NOBODYS
from providers.azure.listing import read_instance, state_of, tags_of
from providers.base import EXPIRES_TAG, InstanceState, ProviderError, UnknownOutcome

TRIES = 3  # as many callers may be before us


def renew(
    clients: Clients,
    group: str,
    find: Callable[[str], Mapping[str, Any] | None],
    name: str,
    expires_at_us: int,
) -> None:
    """Move the expiry of a machine on, never back; one that is not there, or ends, is success.

    Raises UnknownOutcome for one that is being made: a change would take the place of its create.
    """
    for _ in range(TRIES):
        row = find(name)
        if row is None:
            return
        state = state_of(row, (row.get("properties") or {}).get("instanceView"))
        if state in (InstanceState.STOPPING, InstanceState.FAILED):
            return
        if read_instance(row).expires_at_us >= expires_at_us:
            return
        if (row.get("properties") or {}).get("provisioningState") == "Creating":
            raise UnknownOutcome(f"{name} is being made; its tags can be changed when it is there")
        if _patch(clients, group, name, row, expires_at_us):
            return
    raise UnknownOutcome(f"{name}: others change it all the time")


def _patch(
    clients: Clients, group: str, name: str, row: Mapping[str, Any], expires_at_us: int
) -> bool:
    """False where somebody has changed the machine since it was read."""
    tags = tags_of(row) | {EXPIRES_TAG: str(expires_at_us // 1_000_000)}
    unchanged = {"If-Match": str(row["etag"])} if row.get("etag") else {}
    try:
        clients.compute(
            lambda client: client.virtual_machines.begin_update(
                group, name, {"tags": tags}, headers=unchanged, polling=False
            )
        )
    except ProviderError as error:
        if error.code in NOBODYS:
            return True
        if error.code == EXISTS:
            return False
        raise
    return True
