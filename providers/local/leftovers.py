"""Resources that outlive their terminated machine and continue to be billed."""

from __future__ import annotations

import threading

from providers.base import LeftoverKind
from providers.local.launch_validation import DEPLOYMENT_TAG
from providers.local.ledger import Launch

Rows = list[dict[str, object]]


class Leftovers:
    """Unattached disks, addresses and network interfaces. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leftovers: dict[str, tuple[str, dict[str, object]]] = {}  # id -> (personality, row)

    def add(self, launch: Launch, at_us: int) -> None:
        """Leave one leftover of each kind behind an ended machine."""
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
                self._leftovers.setdefault(ident, (launch.personality, row))

    def rows(self, personality: str, deployment: str) -> Rows:
        """The leftovers of a deployment."""
        with self._lock:
            rows = [row for owner, row in self._leftovers.values() if owner == personality]
        return [row for row in rows if _tags(row).get(DEPLOYMENT_TAG) == deployment]

    def discard(self, personality: str, ident: str) -> None:
        """Delete a leftover. Ids that are unknown or of another personality are ignored."""
        with self._lock:
            if self._leftovers.get(ident, ("", {}))[0] == personality:
                del self._leftovers[ident]


def _tags(row: dict[str, object]) -> dict[str, object]:
    tags = row["tags"]
    return tags if isinstance(tags, dict) else {}
