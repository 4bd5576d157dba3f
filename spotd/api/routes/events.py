"""Routes that read the event record and the audit, oldest first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spotd.api.request.request import ApiRequest
from spotd.api.views.resources import event_data, iso
from spotd.domain.phase import phase
from spotd.domain.units import DAY_US, S
from spotd.store.audit import AuditRow

PAGE = 500


def read_events(call: ApiRequest) -> tuple[dict[str, Any], bool]:
    """Events after the id `after`, oldest first, of one job (`job`) or of all; at most `limit`.

    With `last=N` and no `after`, the newest N. A caller that waits with a `phase` of the job gets
    the answer as soon as the job is in another phase.
    """
    store = call.context.store
    name, known_phase = call.query.get("job", ""), call.query.get("phase", "")
    job = replace(call, path={"job": name}).job() if name else None
    job_id = job.id if job else None
    after = call.number("after", 0, 0, 1 << 62)
    limit = call.number("limit", PAGE, 1, PAGE)
    last = call.number("last", 0, 0, 100_000)
    rows = store.events.rows(job_id, after, limit)
    while last and len(rows) >= limit:
        # The store reads forward only; keep the newest `last` of what has been read.
        newer = store.events.rows(job_id, rows[-1].id, limit)
        if not newer:
            break
        rows = [*rows, *newer][-max(last, limit) :]
    if last and not after:
        rows = rows[-last:]
    names: dict[str, str] = {}
    for wanted in {row.job_id for row in rows} - {""}:
        job = store.jobs.find(wanted)
        names[wanted] = job.name if job else wanted
    items = [event_data(row, names.get(row.job_id, "")) for row in rows]
    cursor = rows[-1].id if rows else after
    phase_changed = (
        job is not None
        and known_phase != ""
        and phase(job, store.nodes.of_job(job.id)) != known_phase
    )
    return {"kind": "EventList", "items": items, "cursor": cursor}, bool(items) or phase_changed


def read_audit(call: ApiRequest) -> dict[str, Any]:
    """List audit lines of the last `since_s` seconds (a day), after the id `after`.

    `cursor` is where to go on, "" after the last line. Lines of one request have the same
    `request`. Of one user's refusals within a minute, all but the first few are counted in one
    line.
    """
    since_us = call.now_us - call.number("since_s", DAY_US // S, 0, 1 << 40) * S
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
