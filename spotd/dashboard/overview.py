"""The first page: what runs, what it costs, what was lost, and whether anything leaks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from spotd.base.text import money, places
from spotd.dashboard import fleet, spending
from spotd.dashboard.api_cache import SOON_S, ApiCache, PageData, Query
from spotd.dashboard.components import Column, PageContext, bar, card, count, sign, table, tile
from spotd.dashboard.html import Child, Html, el, join
from spotd.domain.phase import FINISHED

Data = dict[str, Any]
MOST_JOBS = 40  # with their details; of more, the newest
MOST_ENDED = 10
MOST_LOOKED_AT = 50  # of those that ended, for what asks for a person
DAY_S = 86_400
_JOBS = (
    Column("Job"),
    Column("Phase"),
    Column("Step", number=True),
    Column("Where"),
    Column("Gen.", number=True, tip="Generation: the number of the newest attempt"),
    Column("Recoveries", number=True, tip="How often it trained on after a machine was taken away"),
    Column("Steps lost", number=True, tip="Trained, in no checkpoint, and trained again"),
    Column("Saved", number=True, tip="Age of the newest checkpoint"),
    Column("Cost", number=True),
    Column("$ per useful GPU-hour", number=True, tip="Useful: of steps that survive"),
    Column("Finish", tip="As foretold, or the deadline"),
)
_ENDED = (
    Column("Job"),
    Column("Ended as"),
    Column("When"),
    Column("Step", number=True),
    Column("Recoveries", number=True),
    Column("Cost", number=True),
    Column("Why"),
)


@dataclass(frozen=True)
class OverviewData:
    """Answers of the API; None where there was none."""

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


def body(place: PageContext, source: ApiCache, reading: PageData) -> Html:
    day = place.now.replace(hour=0, minute=0, second=0, microsecond=0)
    found = OverviewData(
        *source.ask(
            reading,
            Query("/v1/jobs", {"limit": MOST_JOBS}),
            # (`all` is for a daemon of before, which does not know `ended`.)
            Query("/v1/jobs", {"all": 1, "ended": 1, "limit": MOST_LOOKED_AT}),
            Query("/v1/nodes"),
            Query("/v1/orphans"),
            Query("/v1/budgets", {}, SOON_S),
            Query("/v1/costs/report", {"since_us": _us(day)}, SOON_S),
            Query("/v1/costs/report", {"since_us": _us(day.replace(day=1)), "by": "day"}, SOON_S),
            Query("/v1/stats", {"since_s": DAY_S}, SOON_S),
            Query("/v1/safe-mode"),
            Query("/v1/quarantine"),
            Query("/v1/health"),
        )
    )
    events = source.events(reading)
    silent = not events and (reading.away or reading.refused)
    items = found.jobs["items"] if found.jobs else []
    details = _details(source, reading, items)
    return join(
        _tiles(found),
        _attention(place, found, None if silent else events),
        _jobs(place, found, details),
        fleet.machines(place, found.nodes),
        spending.card_of(place, found.today, found.month, found.budgets),
        fleet.interruptions(place, found.stats, events),
        _ended(place, found.ended),
        fleet.leaks(place, found.orphans),
    )


def _us(at: datetime) -> int:
    return int(at.timestamp() * 1e6)


def _details(
    source: ApiCache, reading: PageData, items: list[Data]
) -> dict[str, tuple[Data, Data]]:
    """Job id -> what `spotctl show`, `cost` and, where it does not train, `why` say of it."""
    asks = [
        Query(f"/v1/jobs/{job['id']}{rest}", {}, SOON_S) for job in items for rest in ("", "/cost")
    ]
    reports = [Query(f"/v1/jobs/{job['id']}/cost/report", {}, SOON_S) for job in items]
    idle = [job["id"] for job in items if job["phase"] not in ("running", "paused")]
    reasons = [Query(f"/v1/jobs/{job_id}/why", {}, SOON_S) for job_id in idle]
    told = iter(source.ask(reading, *asks, *reports, *reasons))
    pairs = [(next(told), next(told)) for _ in items]
    whole = [next(told) for _ in items]
    why = dict(zip(idle, told, strict=True))
    found = {}
    for job, (shown, cost), report in zip(items, pairs, whole, strict=True):
        outlook = (cost or {}).get("outlook") or {}
        rest = {"outlook": outlook, "report": report or {}, "why": why.get(job["id"])}
        found[job["id"]] = (shown or {}, rest)
    return found


def _tiles(found: OverviewData) -> Html:
    jobs = found.jobs or {"items": [], "total": 0}
    phases = Counter(job["phase"] for job in jobs["items"])
    running = phases.pop("running", 0)
    counts = [f"{number} {phase}" for phase, number in phases.most_common()]
    if (rest := jobs["total"] - len(jobs["items"])) > 0:
        counts.append(f"{rest} older ones not looked at")
    others = ", ".join(counts)
    nodes = found.nodes["items"] if found.nodes else []
    rate = sum(one["price_usd_per_h"] for one in nodes)
    tiles = [
        tile(
            "Jobs running",
            _or(found.jobs, f"{running} or more" if rest > 0 else running),
            others or "no others unfinished",
        ),
        tile("Machines", _or(found.nodes, len(nodes)), f"{money(rate)}/h"),
        *spending.tiles(found.today, found.month),
        fleet.leak_tile(found.orphans),
        fleet.taken_tile(found.stats),
    ]
    return el("dl", *tiles, cls="tiles", aria_label="At a glance")


def _or(known: Data | None, value: Child) -> Child:
    return "?" if known is None else value


def _attention(place: PageContext, found: OverviewData, events: list[Data] | None) -> Html:
    """What somebody should look at, the gravest first; what is not known is no good news."""
    rows: list[Child] = []
    if contested := (found.health or {}).get("contested"):
        rows.append((sign("error"), f" It stands still: {contested} ", place.spotctl("doctor")))
    for told, name in ((found.safe_mode, "safe mode"), (found.quarantine, "quarantine")):
        if told and told["active"]:
            word = name.replace(" ", "-")
            rows.append((sign("error"), f" In {name}: {told['reason']} ", place.spotctl(word)))
    held = found.orphans["items"] if found.orphans else []
    if held:
        many = count(len(held), "thing is", "things are")
        rows.append((sign("error"), f" {many} paid for and wanted by no job ",
                     place.spotctl("orphans")))  # fmt: skip
    rows += [
        (sign("warning"), f" What lies in {one} is not known here ", place.spotctl("doctor"))
        for one in (found.orphans["unswept"] if found.orphans else ())
    ]
    since = (place.now - timedelta(seconds=DAY_S)).isoformat()
    listed, ended = set(), (found.ended or {"items": []})["items"]
    for job in ended:
        if job["outcome"] is not None:
            listed.add(job["id"])
        if job["outcome"] == "failed" and (job["finished_at"] or "") > since:
            link = place.job(job["id"], job["name"])
            rows.append((sign("failed"), " ", link, f": {job['outcome_text']}"))
    rows += spending.warnings(found.budgets)
    warned = [one for one in events or () if one["at"] > since and _asks(one, listed)]
    for one in reversed(warned[-6:]):
        named = (place.job(one["job_id"], one["job"]), ": ") if one["job"] else None
        rows.append((sign(one["severity"]), " ", place.age(one["at"]), " ", named, one["text"]))
    rest = len(warned) - 6
    if rest > 0:
        more = el("a", f"{rest} more of the last day", href=place.url("events"))
        rows.append(more)
    if unknown := _unknown(found, events):
        rows.append((sign("warning"), f" Not known, there was no answer: {', '.join(unknown)}"))
    if not rows:
        whole = len(ended) < MOST_LOOKED_AT or (ended[-1]["finished_at"] or "") <= since
        of = "in the last day" if whole else f"of the last {MOST_LOOKED_AT} that ended"
        text = f"Nothing asks for a person: no alert, no leak, no failed job {of}."
        return card("attention", "Attention", el("p", sign_ok(), f" {text}", cls="empty"))
    return card("attention", "Attention", el("ul", *(el("li", row) for row in rows), cls="rows"))


def _unknown(found: OverviewData, events: list[Data] | None) -> list[str]:
    """What nothing can be said of: that it is well least of all."""
    asked = (
        (found.ended, "failed jobs"),
        (events, "events"),
        (found.orphans, "leaks"),
        (found.budgets, "budgets"),
        (found.safe_mode, "safe mode"),
        (found.quarantine, "quarantine"),
    )
    return [name for answer, name in asked if answer is None]


def _asks(event: Data, ended: set[str]) -> bool:
    """What is grave, and not told elsewhere: with interruptions, or with how a job ended."""
    grave = event["severity"] in ("warning", "error")
    return grave and event["kind"] not in fleet.STORY and event["job_id"] not in ended


def sign_ok() -> Html:
    return el("span", el("span", "✓", aria_hidden="true"), cls="sign good")


def _jobs(place: PageContext, found: OverviewData, details: dict[str, tuple[Data, Data]]) -> Html:
    if found.jobs is None:
        return card("jobs", "Jobs", el("p", "not known: there was no answer", cls="empty"))
    items = found.jobs["items"]
    rest = found.jobs["total"] - len(items)
    note = f"{count(rest, 'older one')} not shown" if rest else None
    empty = join(
        "No job is unfinished. Submit one: ",
        place.spotctl("run", "examples/minimal.yaml"),
        " or see one that survives three preemptions: ",
        place.spotctl("demo"),
    )
    rows = [_job_row(place, job, *details[job["id"]]) for job in items]
    keys = [job["id"] for job in items]
    return card("jobs", "Jobs", table("Unfinished jobs", _JOBS, rows, empty, keys), note=note)


def _job_row(place: PageContext, job: Data, shown: Data, costs: Data) -> list[Child]:
    saved = job["last_checkpoint"]
    report, outlook = costs["report"], costs["outlook"]
    return [
        place.job(job["id"], job["name"]),
        sign(job["phase"]),
        _step(job, outlook),
        _where(job, costs["why"]),
        job["generation"],
        job["recoveries"],
        f"{shown['steps_lost']:,}" if shown else "?",
        place.age(saved["at"] if saved else None, "nothing yet"),
        money(job["cost_usd"]),
        money(report.get("usd_per_useful_gpu_hour")),
        _finish(place, shown, outlook),
    ]


def _where(job: Data, why: Data | None) -> Child:
    """Its place; and of a job that does not train, why not."""
    here = places(job["where"]) if job["where"] else el("span", "no machine", cls="none")
    return (here, el("small", why["reason"])) if why else here


def _step(job: Data, outlook: Data) -> Child:
    steps = outlook.get("steps")
    if not steps:
        return f"{job['step']:,}"
    told = f"{job['step']:,} of {steps:,}"
    return (told, " ", bar(job["step"], steps, f"{told} steps of {job['name']}"))


def _finish(place: PageContext, shown: Data, outlook: Data) -> Child:
    ends = outlook.get("finish")
    deadline = shown.get("deadline")
    told: list[Child] = [place.age(ends["middle"])] if ends else []
    if deadline:
        told += [el("br") if told else None, "deadline ", place.age(deadline)]
    return told or el("span", "not foretold", cls="none", title=outlook.get("unknown") or None)


def _ended(place: PageContext, ended: Data | None) -> Html:
    items = [job for job in (ended or {"items": []})["items"] if job["phase"] in FINISHED]
    items.sort(key=lambda job: str(job["finished_at"]), reverse=True)
    rows: list[list[Child]] = [
        [
            place.job(job["id"], job["name"]),
            sign(job["outcome"]),
            place.age(job["finished_at"]),
            f"{job['step']:,}",
            job["recoveries"],
            money(job["cost_usd"]),
            job["outcome_text"] or "-",
        ]
        for job in items[:MOST_ENDED]
    ]
    keys = [job["id"] for job in items[:MOST_ENDED]]
    empty = "No job has ended yet."
    return card(
        "ended", "Ended", table("Jobs that ended, the last first", _ENDED, rows, empty, keys)
    )
