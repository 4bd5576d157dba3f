"""The page of events."""

from __future__ import annotations

from typing import Any

from spotd.dashboard.api_cache import MOST_EVENTS, ApiCache, PageData
from spotd.dashboard.components import Column, PageContext, card, sign, table
from spotd.dashboard.html import Child, Html, el, join

Data = dict[str, Any]
_COLUMNS = (Column("When"), Column("Job"), Column("How grave"), Column("Kind"), Column("What"))


def body(place: PageContext, source: ApiCache, reading: PageData) -> Html:
    events = source.events(reading)
    note = join(f"At most the newest {MOST_EVENTS}. ", place.spotctl("events", "-f"))
    return card("events", "What happened", listed(place, events), note=note)


def listed(place: PageContext, events: list[Data], *, jobs: bool = True) -> Html:
    """The newest first."""
    shown = [one for one in _COLUMNS if jobs or one.title != "Job"]
    rows = [_row(place, one, jobs=jobs) for one in reversed(events)]
    keys = [f"e{one['id']}" for one in reversed(events)]
    empty = "Nothing has happened yet."
    return table("Events, the newest first", shown, rows, empty, keys)


def _row(place: PageContext, one: Data, *, jobs: bool) -> list[Child]:
    job = [place.job(one["job_id"], one["job"])] if jobs else []
    text = el("span", one["text"], cls="text")
    return [place.age(one["at"]), *job, sign(one["severity"]), one["kind"], text]
