"""The events page."""

from __future__ import annotations

from typing import Any

from spotd.api_client.wording import event_text
from spotd.dashboard.api_cache import MOST_EVENTS, ApiCache, PageData
from spotd.dashboard.components import Column, PageContext, card, sign, table
from spotd.dashboard.html import Child, Html, el, join

Data = dict[str, Any]
_COLUMNS = (Column("When"), Column("Job"), Column("Severity"), Column("Kind"), Column("What"))


def body(context: PageContext, cache: ApiCache, page_data: PageData) -> Html:
    events = cache.events(page_data)
    note = join(f"At most the newest {MOST_EVENTS}. ", context.spotctl("events", "-f"))
    return card("events", "What happened", listed(context, events), note=note)


def listed(context: PageContext, events: list[Data], *, jobs: bool = True) -> Html:
    """Return the table of events, newest first."""
    shown = [column for column in _COLUMNS if jobs or column.title != "Job"]
    rows = [_row(context, event, jobs=jobs) for event in reversed(events)]
    keys = [f"e{event['id']}" for event in reversed(events)]
    empty = "Nothing has happened yet."
    return table("Events, the newest first", shown, rows, empty, keys)


def _row(context: PageContext, event: Data, *, jobs: bool) -> list[Child]:
    job = [context.job(event["job_id"], event["job"])] if jobs else []
    text = el("span", event_text(event), cls="text")
    return [context.age(event["at"]), *job, sign(event["severity"]), event["kind"], text]
