"""Reports of `spotctl doctor --live`, as they lie in a folder: what was shown on which cloud, and
when last."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

FOLDER = "live-reports"  # in the state directory
PATH_KIND, RECOVERY_KIND = "LiveReport", "RecoveryReport"


@dataclass(frozen=True)
class Shown:
    """One report."""

    kind: str
    cloud: str
    at: datetime
    ok: bool


def read_reports(folder: Path) -> list[Shown]:
    """Those that can be read, the oldest first; none where there is no folder."""
    found = []
    for path in folder.glob("*.json"):
        try:
            found.append(_read(json.loads(path.read_text())))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue  # half written, or somebody else's
    return sorted(found, key=lambda one: one.at)


def _read(data: Mapping[str, Any]) -> Shown:
    at = datetime.fromisoformat(str(data["at"]))
    if at.tzinfo is None:
        raise ValueError("without a zone")
    return Shown(str(data["kind"]), str(data["cloud"]), at, data["ok"] is True)
