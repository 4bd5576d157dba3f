"""What machines leave behind when a cloud does not clear up after them: it goes on to bill."""

from __future__ import annotations

import threading

from providers.base import LeftoverKind
from providers.local.launch_validation import DEPLOYMENT_TAG
from providers.local.ledger import Launch

Rows = list[dict[str, object]]


class Leftovers:
    """Disks, addresses and cards that hang on no machine; safe to call from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: dict[str, tuple[str, dict[str, object]]] = {}  # id -> (personality, row)

    def leave(self, launch: Launch, at_us: int) -> None:
        """One of each kind, of a machine that ends."""
        with self._lock:
            for kind in LeftoverKind:
                ident = f"{kind.value}-of-{launch.instance_id}"
                row: dict[str, object] = {
                    "leftover_id": ident,
                    "kind": kind.value,
                    "tags": dict(launch.tags),
                    "region": launch.region,
                    "zone": launch.zone,
                    "since_us": at_us,
                }
                self._left.setdefault(ident, (launch.personality, row))

    def rows(self, personality: str, deployment: str) -> Rows:
        """A deployment's."""
        with self._lock:
            found = [row for owner, row in self._left.values() if owner == personality]
        return [row for row in found if _tags(row).get(DEPLOYMENT_TAG) == deployment]

    def discard(self, personality: str, ident: str) -> None:
        """Delete one; another personality's, and one that is not there, are passed over."""
        with self._lock:
            if self._left.get(ident, ("", {}))[0] == personality:
                del self._left[ident]


def _tags(row: dict[str, object]) -> dict[str, object]:
    tags = row["tags"]
    return tags if isinstance(tags, dict) else {}
