"""The page of all jobs, one page of them at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from spotd.api_client.wording import eta_text
from spotd.api_routes import routes
from spotd.base.text import money, percent, places
from spotd.dashboard.api_cache import ApiCache, PageData, Query
from spotd.dashboard.components import Column, PageContext, card, count, phase_sign, table
from spotd.dashboard.html import Child, Html, el

Data = dict[str, Any]
PAGE = 50
MOST_PAGES = 100_000
STATES = ("", "unfinished", "ended", "succeeded", "failed", "cancelled")
SORTS = ("newest", "oldest", "name", "ended")
_COLUMNS = (
    Column("Job"),
    Column("Phase"),
    Column("Where"),
    Column("Cost", number=True),
    Column("Step", number=True, more=True),
    Column("Done", number=True, more=True),
    Column("Ends in", number=True, tip="At the rate of the last 24 h", more=True),
    Column("Recoveries", number=True, more=True),
    Column("Submitted", more=True),
    Column("Ended", more=True),
)


def body(
    context: PageContext, cache: ApiCache, page_data: PageData, query: Mapping[str, str]
) -> Html:
    wanted = {
        "name": query.get("name", "")[:100],
        "state": query.get("state", "") if query.get("state") in STATES else "",
        "sort": query.get("sort", "") if query.get("sort") in SORTS else "newest",
    }
    text = query.get("page", "")
    number = min(max(1, int(text)), MOST_PAGES) if text.isdecimal() and len(text) < 9 else 1
    given = {name: value for name, value in wanted.items() if value}
    request = {**given, "offset": (number - 1) * PAGE, "limit": PAGE}
    (data,) = cache.fetch(page_data, Query(routes.LIST_JOBS(), request))
    if data is None:
        empty: Child = el("p", "not known: there was no answer", cls="empty")
        return card("jobs", "Jobs", _form(wanted), empty)
    rows = [_row(context, job) for job in data["items"]]
    keys = [job["id"] for job in data["items"]]
    jobs_table = table("Jobs", _COLUMNS, rows, "No job matches.", keys)
    pages = -(-data["total"] // PAGE)
    links = _links(context, given, number, pages)
    note = f"{count(data['total'], 'job')}, {PAGE} a page. A column's title sorts this page."
    return card("jobs", "All jobs", _form(wanted), jobs_table, links, note=note)


def _form(wanted: Mapping[str, str]) -> Html:
    states = (el("option", s or "any", value=s, selected=s == wanted["state"]) for s in STATES)
    sorts = (el("option", s, value=s, selected=s == wanted["sort"]) for s in SORTS)
    return el(
        "form",
        el("label", "Name has ", el("input", name="name", value=wanted["name"], size=14)),
        el("label", "State ", el("select", *states, name="state")),
        el("label", "Order ", el("select", *sorts, name="sort")),
        el("button", "Show"),
        method="get",
        cls="filter",
    )


def _row(context: PageContext, job: Data) -> list[Child]:
    progress = job["progress"]
    return [
        context.job(job["id"], job["name"]),
        phase_sign(job),
        places(job["where"]) if job["where"] else el("span", "no machine", cls="none"),
        money(job["cost_usd"]),
        f"{job['step']:,}",
        percent(progress["share"]),
        eta_text(progress, context.now),
        job["recoveries"],
        context.age(job["created_at"]),
        context.age(job["finished_at"]),
    ]


def _links(context: PageContext, given: Mapping[str, str], number: int, pages: int) -> Html | None:
    if pages <= 1 and number == 1:
        return None

    def link(text: str, to: int) -> Html:
        return el("a", text, href=f"{context.url('jobs')}?{urlencode({**given, 'page': to})}")

    before = link("← Before", number - 1) if number > 1 else None
    after = link("Next →", number + 1) if number < pages else None
    return el("nav", before, f"Page {number:,} of {pages:,}", after, cls="pages",
              aria_label="Pages of jobs")  # fmt: skip
