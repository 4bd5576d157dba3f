"""The page of one job."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from spotd.api_client.wording import result_text
from spotd.base.text import money, places
from spotd.dashboard import explain, job_account, timeline
from spotd.dashboard.api_cache import SELDOM_S, SOON_S, ApiCache, PageData, Query
from spotd.dashboard.components import PageContext, card, pairs, sign, tile
from spotd.dashboard.events import listed
from spotd.dashboard.html import Html, el, join, lines

Data = dict[str, Any]
LOG_BYTES = 8192
LOG_LINES = 20  # of each stream
MOST_STREAMS = 4
_WHY_S = 5.0
# What a terminal would be told; a page has no use for it.
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


def body(place: PageContext, source: ApiCache, reading: PageData, ident: str) -> tuple[str, Html]:
    """Its title, and what is under it."""
    path = f"/v1/jobs/{quote(ident, safe='')}"
    (job,) = source.ask(reading, Query(path))
    if job is None:
        text = "This job cannot be shown."
        return "Job", join(el("p", text, cls="empty"), place.spotctl("ps", "--all"))
    path = f"/v1/jobs/{job['id']}"
    why, cost, report, saved, logs = source.ask(
        reading,
        Query(f"{path}/why", {}, _WHY_S),
        Query(f"{path}/cost", {}, SOON_S),
        Query(f"{path}/cost/report", {}, SOON_S),
        Query(f"{path}/checkpoints", {}, SELDOM_S if job["outcome"] else SOON_S),
        Query(f"{path}/logs", {}, body={"tail_bytes": LOG_BYTES}),
    )
    events = source.events(reading, job["id"])
    return job["name"], join(
        _head(place, job, cost, report),
        explain.card_of(place, why, job["name"]) if job["outcome"] is None else None,
        timeline.card_of(place, job),
        job_account.card_of(place, cost, report, job["name"]),
        job_account.checkpoints(place, saved, job["name"]),
        _results(job),
        card(
            "events",
            "Events",
            listed(place, events[-15:], jobs=False),
            note=place.spotctl("events", job["name"]),
        ),
        _output(place, job, logs),
    )


def _head(place: PageContext, job: Data, cost: Data | None, report: Data | None) -> Html:
    outlook = (cost or {}).get("outlook") or {}
    steps = outlook.get("steps")
    saved = job["last_checkpoint"]
    useful = (report or {}).get("usd_per_useful_gpu_hour")
    ends = outlook.get("finish")
    when = place.age(ends["middle"]) if ends else place.age(job["finished_at"], "not foretold")
    deadline = ("deadline ", place.age(job["deadline"])) if job["deadline"] else None
    tiles = [
        tile("Phase", sign(job["phase"]), places(job["where"]) if job["where"] else "no machine"),
        tile("Step", f"{job['step']:,}", f"of {steps:,}" if steps else "its total is not known"),
        tile("Recoveries", job["recoveries"], f"generation {job['generation']}"),
        tile("Steps lost", f"{job['steps_lost']:,}", "trained again"),
        tile("Saved", place.age(saved["at"] if saved else None, "nothing yet"),
             f"step {saved['step']:,}" if saved else None),
        tile("Cost", money(job["cost_usd"]), f"{money(useful)} per useful GPU-hour"),
        _drill(place, job.get("drill")),
        tile("Ended" if job["finished_at"] else "Finish", when, deadline),
    ]  # fmt: skip
    tail = _last_words(job)
    return join(
        el("dl", *tiles, cls="tiles", aria_label="At a glance"),
        el("p", el("strong", "Why: "), job["outcome_text"], cls="reason")
        if job["outcome_text"]
        else None,
        tail,
        el("p", _next_command(place, job), cls="note"),
    )


def _drill(place: PageContext, drill: Data | None) -> Html:
    """The last drill, which is what is known of whether it would come back."""
    if drill is None:
        return tile("Last drill", "none", "spotctl drill run")
    at = place.age(drill["ended_at"] or drill["asked_at"])
    return tile("Last drill", sign(drill["state"].replace("_", " ")), (drill["drill"], " ", at))


def _last_words(job: Data) -> Html | None:
    crashed = [one for one in job["nodes"] if one["exit_code"] not in (None, 0, 75)]
    told = [one for one in crashed if one["exit_tail"]]
    if not told or job["outcome"] != "failed":
        return None
    title = f"Last output of generation {told[-1]['generation']}, exit {told[-1]['exit_code']}"
    return el("div", el("h3", title), el("pre", plain(told[-1]["exit_tail"]), tabindex=0))


def _next_command(place: PageContext, job: Data) -> Html:
    """What one would type next, of what spotctl can do."""
    if job["outcome"]:
        return join("Its file: ", place.spotctl("show", job["name"], "--file"))
    if job["desired"] == "pause":
        return join("To go on: ", place.spotctl("resume", job["name"]))
    return join("To hold it: ", place.spotctl("pause", job["name"]))


def _results(job: Data) -> Html | None:
    """What evaluations measured; nothing where none was handed in."""
    told = [(one["suite"], result_text(one)) for one in job["results"]]
    return card("results", "Results", pairs(told)) if told else None


def _output(place: PageContext, job: Data, logs: Data | None) -> Html:
    chunks = (logs or {"chunks": []})["chunks"]
    rest = ["logs", job["name"], "-f"] if job["outcome"] is None else ["logs", job["name"]]
    streams: dict[str, list[str]] = {}
    for one in chunks:
        name = f"generation {one['generation']}, machine {one['rank']}, {one['stream']}"
        streams.setdefault(name, []).append(one["text"])
    shown = list(streams.items())[::-1][:MOST_STREAMS]  # the newest first
    parts = [
        join(
            el("h3", name),
            el("pre", tail_of("".join(texts)), tabindex=0, aria_label=f"Output of {name}"),
        )
        for name, texts in shown
    ]
    empty = None if parts else el("p", "No output yet.", cls="empty")
    note = place.spotctl(*rest)
    return card("output", "Last output", *parts, empty, note=note)


def tail_of(text: str) -> Html:
    """The last lines of bytes that came as latin-1."""
    told = text.encode("latin-1", "replace").decode(errors="replace")
    return plain("\n".join(told.splitlines()[-LOG_LINES:]))


def plain(text: str) -> Html:
    """Lines without what is meant for terminals."""
    return lines(_ESCAPE.sub("", text))
