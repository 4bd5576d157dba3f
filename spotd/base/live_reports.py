"""Reports of `spotctl doctor --live` in a folder: what was shown on which cloud, and when."""

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
class LiveReport:
    """One report."""

    kind: str
    cloud: str
    at: datetime
    ok: bool


def read_reports(folder: Path) -> list[LiveReport]:
    """Return the readable reports, the oldest first; none without the folder."""
    reports = []
    for path in folder.glob("*.json"):
        try:
            reports.append(_read(json.loads(path.read_text())))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue  # half written, or somebody else's
    return sorted(reports, key=lambda one: one.at)


def _read(data: Mapping[str, Any]) -> LiveReport:
    at = datetime.fromisoformat(str(data["at"]))
    if at.tzinfo is None:
        raise ValueError("without a zone")
    return LiveReport(str(data["kind"]), str(data["cloud"]), at, data["ok"] is True)
