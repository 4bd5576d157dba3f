"""The first page: what runs, what it costs, what was lost, and whether resources leak."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from spotd.api_client.wording import outcome_text
from spotd.api_routes import routes
from spotd.base.text import money, places
from spotd.dashboard import fleet, spending
from spotd.dashboard.api_cache import SOON_S, ApiCache, PageData, Query
from spotd.dashboard.components import (
    Column,
    PageContext,
    bar,
    card,
    count,
    phase_sign,
    sign,
    table,
    tile,
)
from spotd.dashboard.html import Child, Html, el, join
from spotd.domain.phase import FINISHED

Data = dict[str, Any]
MOST_JOBS = 40  # jobs shown with their details, newest first
MOST_ENDED = 10
MOST_LOOKED_AT = 50  # ended jobs that are searched for failures
DAY_S = 86_400
_JOBS = (
    Column("Job"),
    Column("Phase"),
    Column("Step", number=True, more=True),
    Column("Where"),
    Column("Attempt", number=True, tip="The number of the newest attempt", more=True),
    Column("Recoveries", number=True, more=True,
           tip="How often it trained on after a machine was taken away"),
    Column("Steps lost", number=True, tip="Trained, not saved, and trained again", more=True),
    Column("Saved", number=True, tip="Age of the newest checkpoint", more=True),
    Column("Cost", number=True),
    Column("$ per useful GPU-hour", number=True, tip="Useful: of steps that remain", more=True),
    Column("Ends", tip="At the rate of the last 24 h, losses and waits included", more=True),
)  # fmt: skip
_ENDED = (
    Column("Job"),
    Column("Ended as"),
    Column("When", more=True),
    Column("Step", number=True, more=True),
    Column("Recoveries", number=True, more=True),
    Column("Cost", number=True),
    Column("Why"),
)


@dataclass(frozen=True)
class OverviewData:
    """Replies of the API; None where there was none."""

    jobs: Data | None
    ended: Data | None
    nodes: Data | None
    orphans: Data | None
    budgets: Data | None
    today: Data | None
    month: Data | None
    stats: Data | None
    safe_mode: Data | None
    quarantine: Data | None
    health: Data | None


def body(context: PageContext, cache: ApiCache, page_data: PageData) -> Html:
    day = context.now.replace(hour=0, minute=0, second=0, microsecond=0)
    data = OverviewData(
        *cache.fetch(
            page_data,
            Query(routes.LIST_JOBS(), {"limit": MOST_JOBS}),
            # (`all` is for an older daemon, which does not know `ended`.)
            Query(routes.LIST_JOBS(), {"all": 1, "ended": 1, "limit": MOST_LOOKED_AT}),
            Query(routes.LIST_NODES()),
            Query(routes.LIST_ORPHANS()),
            Query(routes.LIST_BUDGETS(), {}, SOON_S),
            Query(routes.COST_REPORT(), {"since_us": _us(day)}, SOON_S),
            Query(routes.COST_REPORT(), {"since_us": _us(day.replace(day=1)), "by": "day"}, SOON_S),
            Query(routes.STATS(), {"since_s": DAY_S}, SOON_S),
            Query(routes.SHOW_SAFE_MODE()),
            Query(routes.SHOW_QUARANTINE()),
            Query(routes.HEALTH()),
        )
    )
    events = cache.events(page_data)
    no_events = not events and (page_data.away or page_data.refused)
    items = data.jobs["items"] if data.jobs else []
    details = _details(cache, page_data, items)
    return join(
        _tiles(data),
        _attention(context, data, None if no_events else events),
        _jobs(context, data, details),
        fleet.machines(context, data.nodes),
        spending.card_of(context, data.today, data.month, data.budgets),
        fleet.interruptions(context, data.stats, events),
        _ended(context, data.ended),
        fleet.leaks(context, data.orphans),
    )


def _us(at: datetime) -> int:
    return int(at.timestamp() * 1e6)


def _details(
    cache: ApiCache, page_data: PageData, items: list[Data]
) -> dict[str, tuple[Data, Data]]:
    """Return job id -> its `show` data and its cost, with `why` for jobs that do not train."""
    queries = [
        Query(operation(job=job["id"]), {}, SOON_S)
        for job in items
        for operation in (routes.SHOW_JOB, routes.JOB_COST)
    ]
    reports = [Query(routes.JOB_COST_REPORT(job=job["id"]), {}, SOON_S) for job in items]
    idle = [job["id"] for job in items if job["phase"] not in ("running", "paused")]
    reasons = [Query(routes.EXPLAIN_JOB(job=job_id), {}, SOON_S) for job_id in idle]
    replies = iter(cache.fetch(page_data, *queries, *reports, *reasons))
    pairs = [(next(replies), next(replies)) for _ in items]
    cost_reports = [next(replies) for _ in items]
    why = dict(zip(idle, replies, strict=True))
    details = {}
    for job, (shown, cost), report in zip(items, pairs, cost_reports, strict=True):
        outlook = (cost or {}).get("outlook") or {}
        costs = {"outlook": outlook, "report": report or {}, "why": why.get(job["id"])}
        details[job["id"]] = (shown or {}, costs)
    return details


def _tiles(data: OverviewData) -> Html:
    jobs = data.jobs or {"items": [], "total": 0}
    phases = Counter(job["phase"] for job in jobs["items"])
    running = phases.pop("running", 0)
    counts = [f"{number} {phase}" for phase, number in phases.most_common()]
    if (not_shown := jobs["total"] - len(jobs["items"])) > 0:
        counts.append(f"{not_shown} older ones not looked at")
    others = ", ".join(counts)
    nodes = data.nodes["items"] if data.nodes else []
    rate = sum(node["price_usd_per_h"] for node in nodes)
    tiles = [
        tile(
            "Jobs running",
            _or_unknown(data.jobs, f"{running} or more" if not_shown > 0 else running),
            others or "no others unfinished",
        ),
        tile("Machines", _or_unknown(data.nodes, len(nodes)), f"{money(rate)}/h"),
        *spending.tiles(data.today, data.month),
        fleet.leak_tile(data.orphans),
        fleet.taken_tile(data.stats),
    ]
    return el("dl", *tiles, cls="tiles", aria_label="At a glance")


def _or_unknown(reply: Data | None, value: Child) -> Child:
    return "?" if reply is None else value


def _attention(context: PageContext, data: OverviewData, events: list[Data] | None) -> Html:
    """Return what somebody should check, most severe first. Missing data counts as a problem."""
    rows: list[Child] = []
    if contested := (data.health or {}).get("contested"):
        rows.append(
            (sign("error"), f" It makes no changes: {contested} ", context.spotctl("doctor"))
        )
    for status, name in ((data.safe_mode, "safe mode"), (data.quarantine, "quarantine")):
        if status and status["active"]:
            word = name.replace(" ", "-")
            rows.append((sign("error"), f" In {name}: {status['reason']} ", context.spotctl(word)))
    held = data.orphans["items"] if data.orphans else []
    if held:
        things = count(len(held), "thing is", "things are")
        rows.append((sign("error"), f" {things} paid for and needed by no job  ",
                     context.spotctl("orphans")))  # fmt: skip
    rows += [
        (
            sign("warning"),
            f" The contents of {provider} are not known here ",
            context.spotctl("doctor"),
        )
        for provider in (data.orphans["unswept"] if data.orphans else ())
    ]
    since = (context.now - timedelta(seconds=DAY_S)).isoformat()
    listed, ended = set(), (data.ended or {"items": []})["items"]
    for job in ended:
        if job["outcome"] is not None:
            listed.add(job["id"])
        if job["outcome"] == "failed" and (job["finished_at"] or "") > since:
            link = context.job(job["id"], job["name"])
            rows.append((sign("failed"), " ", link, f": {outcome_text(job)}"))
    rows += spending.warnings(data.budgets)
    warned = [
        event for event in events or () if event["at"] > since and _needs_attention(event, listed)
    ]
    for event in reversed(warned[-6:]):
        named = (context.job(event["job_id"], event["job"]), ": ") if event["job"] else None
        rows.append(
            (sign(event["severity"]), " ", context.age(event["at"]), " ", named, event["text"])
        )
    rest = len(warned) - 6
    if rest > 0:
        more = el("a", f"{rest} more of the last day", href=context.url("events"))
        rows.append(more)
    if unknown := _unknown(data, events):
        rows.append((sign("warning"), f" Not known, there was no answer: {', '.join(unknown)}"))
    if not rows:
        complete = len(ended) < MOST_LOOKED_AT or (ended[-1]["finished_at"] or "") <= since
        scope = "in the last day" if complete else f"of the last {MOST_LOOKED_AT} that ended"
        message = f"Nothing needs attention: no alert, no leak, no failed job {scope}."
        return card("attention", "Attention", el("p", sign_ok(), f" {message}", cls="empty"))
    return card("attention", "Attention", el("ul", *(el("li", row) for row in rows), cls="rows"))


def _unknown(data: OverviewData, events: list[Data] | None) -> list[str]:
    """Return what has no data, so that nobody takes it for fine."""
    replies = (
        (data.ended, "failed jobs"),
        (events, "events"),
        (data.orphans, "leaks"),
        (data.budgets, "budgets"),
        (data.safe_mode, "safe mode"),
        (data.quarantine, "quarantine"),
    )
    return [name for reply, name in replies if reply is None]


def _needs_attention(event: Data, ended: set[str]) -> bool:
    """Return whether an event is severe, and not shown with interruptions or with an ended job."""
    severe = event["severity"] in ("warning", "error")
    return severe and event["kind"] not in fleet.STORY and event["job_id"] not in ended


def sign_ok() -> Html:
    return el("span", el("span", "✓", aria_hidden="true"), cls="sign good")


def _jobs(context: PageContext, data: OverviewData, details: dict[str, tuple[Data, Data]]) -> Html:
    if data.jobs is None:
        return card("jobs", "Jobs", el("p", "not known: there was no answer", cls="empty"))
    items = data.jobs["items"]
    not_shown = data.jobs["total"] - len(items)
    older = f"{count(not_shown, 'older one')} not shown: " if not_shown else ""
    note = (older, el("a", "all jobs", href=context.url("jobs")))
    empty = join(
        "No job is unfinished. Submit one: ",
        context.spotctl("run", "examples/minimal.yaml"),
        " or see one that survives three preemptions: ",
        context.spotctl("demo"),
    )
    rows = [_job_row(context, job, *details[job["id"]]) for job in items]
    keys = [job["id"] for job in items]
    return card("jobs", "Jobs", table("Unfinished jobs", _JOBS, rows, empty, keys), note=note)


def _job_row(context: PageContext, job: Data, shown: Data, costs: Data) -> list[Child]:
    checkpoint = job["last_checkpoint"]
    report = costs["report"]
    return [
        context.job(job["id"], job["name"]),
        phase_sign(job),
        _step(job),
        _where(job, costs["why"]),
        job["generation"],
        job["recoveries"],
        "?" if not shown or shown["steps_lost"] is None else f"{shown['steps_lost']:,}",
        context.age(checkpoint["at"] if checkpoint else None, "nothing yet"),
        money(job["cost_usd"]),
        money(report.get("usd_per_useful_gpu_hour")),
        _finish(context, job, shown),
    ]


def _where(job: Data, why: Data | None) -> Child:
    """Return the job's place, and the reason when it does not train."""
    here = places(job["where"]) if job["where"] else el("span", "no machine", cls="none")
    return (here, el("small", why["reason"])) if why else here


def _step(job: Data) -> Child:
    steps = job["progress"]["total_steps"]
    if not steps:
        return f"{job['step']:,}"
    progress = f"{job['step']:,} of {steps:,}"
    return (progress, " ", bar(job["step"], steps, f"{progress} steps of {job['name']}"))


def _finish(context: PageContext, job: Data, shown: Data) -> Child:
    progress, deadline = job["progress"], shown.get("deadline")
    unknown = el("span", "unknown", cls="none", title=progress["unknown"] or None)
    parts: list[Child] = [context.age(progress["eta"]) if progress["eta"] else unknown]
    return [*parts, el("br"), "deadline ", context.age(deadline)] if deadline else parts


def _ended(context: PageContext, ended: Data | None) -> Html:
    items = [job for job in (ended or {"items": []})["items"] if job["phase"] in FINISHED]
    items.sort(key=lambda job: str(job["finished_at"]), reverse=True)
    rows: list[list[Child]] = [
        [
            context.job(job["id"], job["name"]),
            phase_sign(job),
            context.age(job["finished_at"]),
            f"{job['step']:,}",
            job["recoveries"],
            money(job["cost_usd"]),
            outcome_text(job) or "-",
        ]
        for job in items[:MOST_ENDED]
    ]
    keys = [job["id"] for job in items[:MOST_ENDED]]
    empty = "No job has ended yet."
    return card(
        "ended", "Ended", table("Jobs that ended, the last first", _ENDED, rows, empty, keys)
    )
