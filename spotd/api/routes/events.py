"""The route that reads the event record, oldest first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spotd.api.request.request import ApiRequest
from spotd.api.views.resources import event_data
from spotd.domain.phase import phase

_PAGE = 500


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
    limit = call.number("limit", _PAGE, 1, _PAGE)
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
