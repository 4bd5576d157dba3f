"""Extend the expiry tag of a machine.

Azure replaces all tags at once, so the new tags are computed from the read ones, and the update is
conditional on the ETag.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from providers.azure.clients import Clients
from providers.azure.codes import EXISTS, NOT_FOUND
from providers.azure.listing import read_instance, state_of, tags_of
from providers.base import EXPIRES_TAG, InstanceState, ProviderError, UnknownOutcome

ATTEMPTS = 3  # concurrent updates that are tolerated


def renew(
    clients: Clients,
    group: str,
    find: Callable[[str], Mapping[str, Any] | None],
    name: str,
    expires_at_us: int,
) -> None:
    """Extend the expiry of a machine, never shorten it; a missing and a terminating machine are
    success.

    Raises UnknownOutcome while the machine is being created: an update would replace its create.
    """
    for _ in range(ATTEMPTS):
        row = find(name)
        if row is None:
            return
        state = state_of(row, (row.get("properties") or {}).get("instanceView"))
        if state in (InstanceState.STOPPING, InstanceState.FAILED):
            return
        if read_instance(row).expires_at_us >= expires_at_us:
            return
        if (row.get("properties") or {}).get("provisioningState") == "Creating":
            raise UnknownOutcome(
                f"{name} is still being created; its tags cannot be changed before that is done"
            )
        if _patch(clients, group, name, row, expires_at_us):
            return
    raise UnknownOutcome(f"{name}: too many concurrent changes")


def _patch(
    clients: Clients, group: str, name: str, row: Mapping[str, Any], expires_at_us: int
) -> bool:
    """Return False when somebody changed the machine since it was read."""
    tags = tags_of(row) | {EXPIRES_TAG: str(expires_at_us // 1_000_000)}
    unchanged = {"If-Match": str(row["etag"])} if row.get("etag") else {}
    try:
        clients.compute(
            lambda client: client.virtual_machines.begin_update(
                group, name, {"tags": tags}, headers=unchanged, polling=False
            )
        )
    except ProviderError as error:
        if error.code in NOT_FOUND:
            return True
        if error.code == EXISTS:
            return False
        raise
    return True
