"""The page of one job."""

from __future__ import annotations

import re
from typing import Any

from spotd.api_client.wording import result_text
from spotd.api_routes import routes
from spotd.base.text import money, places
from spotd.dashboard import actions, explain, job_account, timeline
from spotd.dashboard.api_cache import SELDOM_S, SOON_S, ApiCache, PageData, Query
from spotd.dashboard.components import PageContext, card, pairs, phase_sign, sign, tile
from spotd.dashboard.events import listed
from spotd.dashboard.html import Html, el, join, lines

Data = dict[str, Any]
LOG_BYTES = 8192
LOG_LINES = 20  # lines of each stream
MOST_STREAMS = 4
_WHY_S = 5.0
# Escape sequences for terminals, which a page does not need.
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


def body(
    context: PageContext, cache: ApiCache, page_data: PageData, ident: str
) -> tuple[str, Html]:
    """Return the title of the page and its content."""
    (job,) = cache.fetch(page_data, Query(routes.SHOW_JOB(job=ident)))
    if job is None:
        text = "This job cannot be shown."
        return "Job", join(el("p", text, cls="empty"), context.spotctl("ps", "--all"))
    job_id = job["id"]
    why, cost, report, checkpoints, logs = cache.fetch(
        page_data,
        Query(routes.EXPLAIN_JOB(job=job_id), {}, _WHY_S),
        Query(routes.JOB_COST(job=job_id), {}, SOON_S),
        Query(routes.JOB_COST_REPORT(job=job_id), {}, SOON_S),
        Query(routes.LIST_CHECKPOINTS(job=job_id), {}, SELDOM_S if job["outcome"] else SOON_S),
        Query(routes.READ_LOGS(job=job_id), {}, body={"tail_bytes": LOG_BYTES}),
    )
    events = cache.events(page_data, job["id"])
    return job["name"], join(
        actions.links(context, job),
        _head(context, job, cost, report),
        explain.card_of(context, why, job["name"]) if job["outcome"] is None else None,
        timeline.card_of(context, job),
        job_account.card_of(context, cost, report, job["name"]),
        job_account.checkpoints(context, checkpoints, job["name"]),
        _results(job),
        card(
            "events",
            "Events",
            listed(context, events[-15:], jobs=False),
            note=context.spotctl("events", job["name"]),
        ),
        _output(context, job, logs),
    )


def _head(context: PageContext, job: Data, cost: Data | None, report: Data | None) -> Html:
    outlook = (cost or {}).get("outlook") or {}
    steps = outlook.get("steps")
    checkpoint = job["last_checkpoint"]
    useful = (report or {}).get("usd_per_useful_gpu_hour")
    finish = outlook.get("finish")
    when = (
        context.age(finish["middle"]) if finish else context.age(job["finished_at"], "not foretold")
    )
    deadline = ("deadline ", context.age(job["deadline"])) if job["deadline"] else None
    tiles = [
        tile("Phase", phase_sign(job), places(job["where"]) if job["where"] else "no machine"),
        tile("Step", f"{job['step']:,}", f"of {steps:,}" if steps else "its total is not known"),
        tile("Recoveries", job["recoveries"], _restarts(job)),
        tile("Lost", *_lost(job)),
        tile("Saved", context.age(checkpoint["at"] if checkpoint else None, "nothing yet"),
             f"step {checkpoint['step']:,}" if checkpoint else None),
        tile("Cost", money(job["cost_usd"]), f"{money(useful)} per useful GPU-hour"),
        _drill(context, job.get("drill")),
        tile("Ended" if job["finished_at"] else "Finish", when, deadline),
    ]  # fmt: skip
    last_output = _last_output(job)
    return join(
        el("dl", *tiles, cls="tiles", aria_label="At a glance"),
        el("p", el("strong", "Why: "), job["outcome_text"], cls="reason")
        if job["outcome_text"]
        else None,
        last_output,
        el("p", _next_command(context, job), cls="note"),
    )


def _restarts(job: Data) -> str:
    anew = f"{job['restarts_anew']} from the beginning, " if job["restarts_anew"] else ""
    return f"{anew}generation {job['generation']}"


def _lost(job: Data) -> tuple[str, str]:
    """Return the steps and the time that were trained again, or are to be."""
    steps = "" if job["steps_lost"] is None else f"{job['steps_lost']:,} steps"
    if job["lost_s"] is None:
        return steps or "not known", "of the work"
    took = timeline.seconds(job["lost_s"])
    return steps or took, f"{took} of work, {money(job['lost_usd'])}"


def _drill(context: PageContext, drill: Data | None) -> Html:
    """Return the last drill, which shows whether the job recovers."""
    if drill is None:
        return tile("Last drill", "none", "spotctl drill run")
    at = context.age(drill["ended_at"] or drill["asked_at"])
    return tile("Last drill", sign(drill["state"].replace("_", " ")), (drill["drill"], " ", at))


def _last_output(job: Data) -> Html | None:
    crashed = [node for node in job["nodes"] if node["exit_code"] not in (None, 0, 75)]
    nodes = [node for node in crashed if node["exit_tail"]]
    if not nodes or job["outcome"] != "failed":
        return None
    title = f"Last output of generation {nodes[-1]['generation']}, exit {nodes[-1]['exit_code']}"
    return el("div", el("h3", title), el("pre", plain(nodes[-1]["exit_tail"]), tabindex=0))


def _next_command(context: PageContext, job: Data) -> Html:
    """Return the spotctl command that a user is likely to need next."""
    if job["outcome"]:
        return join("Its file: ", context.spotctl("show", job["name"], "--file"))
    if job["desired"] == "pause":
        return join("To go on: ", context.spotctl("resume", job["name"]))
    return join("To hold it: ", context.spotctl("pause", job["name"]))


def _results(job: Data) -> Html | None:
    """Return the evaluation results; None where there are none."""
    rows = [(result["suite"], result_text(result)) for result in job["results"]]
    return card("results", "Results", pairs(rows)) if rows else None


def _output(context: PageContext, job: Data, logs: Data | None) -> Html:
    chunks = (logs or {"chunks": []})["chunks"]
    arguments = ["logs", job["name"], "-f"] if job["outcome"] is None else ["logs", job["name"]]
    streams: dict[str, list[str]] = {}
    for chunk in chunks:
        name = f"generation {chunk['generation']}, machine {chunk['rank']}, {chunk['stream']}"
        streams.setdefault(name, []).append(chunk["text"])
    newest_streams = list(streams.items())[::-1][:MOST_STREAMS]  # the newest first
    parts = [
        join(
            el("h3", name),
            el("pre", tail_of("".join(texts)), tabindex=0, aria_label=f"Output of {name}"),
        )
        for name, texts in newest_streams
    ]
    empty = None if parts else el("p", "No output yet.", cls="empty")
    note = context.spotctl(*arguments)
    return card("output", "Last output", *parts, empty, note=note)


def tail_of(text: str) -> Html:
    """Return the last lines of bytes that were sent as latin-1."""
    decoded = text.encode("latin-1", "replace").decode(errors="replace")
    return plain("\n".join(decoded.splitlines()[-LOG_LINES:]))


def plain(text: str) -> Html:
    """Return lines without terminal escape sequences."""
    return lines(_ESCAPE.sub("", text))
