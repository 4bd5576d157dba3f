"""The route that reads the audit, oldest first."""

from __future__ import annotations

from typing import Any

from spotd.api.request.request import ApiRequest
from spotd.api.views.resources import iso
from spotd.store.audit import AuditRow

PAGE = 500
_DAY_US = 86_400_000_000


def read_audit(call: ApiRequest) -> dict[str, Any]:
    """List audit lines of the last `since_s` seconds (a day), after the id `after`.

    `cursor` is where to go on, "" after the last line. Lines of one request have the same
    `request`. Of one user's refusals within a minute, all but the first few are counted in one
    line.
    """
    since_us = call.now_us - call.number("since_s", _DAY_US // 1_000_000, 0, 1 << 40) * 1_000_000
    rows = call.context.store.audit.rows(since_us, call.number("after", 0, 0, 1 << 62), PAGE)
    cursor = str(rows[-1].id) if len(rows) == PAGE else ""
    return {"kind": "AuditList", "items": [_line(row) for row in rows], "cursor": cursor}


def _line(row: AuditRow) -> dict[str, Any]:
    return {
        "at": iso(row.at_us),
        "user": row.user,
        "uid": row.uid if row.uid >= 0 else None,
        "action": row.action,
        "target": row.target,
        "outcome": row.outcome.value,
        "text": row.text,
        "request": row.request,
    }
