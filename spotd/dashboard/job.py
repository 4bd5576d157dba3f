"""The page of one job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from spotd.api_client.wording import failure_title, result_text
from spotd.api_routes import routes
from spotd.base.text import money, percent, places, size, span
from spotd.dashboard import actions, explain, job_account, job_curves, timeline
from spotd.dashboard.api_cache import SELDOM_S, SOON_S, ApiCache, PageData, Query
from spotd.dashboard.components import PageContext, bar, card, pairs, phase_sign, sign, tile
from spotd.dashboard.events import listed
from spotd.dashboard.html import Child, Html, el, join, lines

Data = dict[str, Any]
LOG_BYTES = 8192
LOG_LINES = 20  # lines of each stream
MOST_STREAMS = 4
_WHY_S = 5.0
# Escape sequences for terminals, which a page does not need.
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


def body(
    context: PageContext,
    cache: ApiCache,
    page_data: PageData,
    ident: str,
    query: Mapping[str, str],
) -> tuple[str, Html]:
    """Return the title of the page and its content."""
    (job,) = cache.fetch(page_data, Query(routes.SHOW_JOB(job=ident)))
    if job is None:
        text = "This job cannot be shown."
        return "Job", join(el("p", text, cls="empty"), context.spotctl("ps", "--all"))
    job_id, words = job["id"], query.get("search", "")[:100]
    why, cost, report, checkpoints, curves, logs = cache.fetch(
        page_data,
        Query(routes.EXPLAIN_JOB(job=job_id), {}, _WHY_S),
        Query(routes.JOB_COST(job=job_id), {}, SOON_S),
        Query(routes.JOB_COST_REPORT(job=job_id), {}, SOON_S),
        Query(routes.LIST_CHECKPOINTS(job=job_id), {}, SELDOM_S if job["outcome"] else SOON_S),
        Query(routes.JOB_CURVES(job=job_id), {"points": 300}, SOON_S),
        Query(routes.SEARCH_LOGS(job=job_id), {"text": words, "before": query.get("before", "")})
        if words
        else Query(routes.READ_LOGS(job=job_id), {}, body={"tail_bytes": LOG_BYTES}),
    )
    events = cache.events(page_data, job["id"])
    return job["name"], join(
        actions.links(context, job),
        _head(context, job, cost, report),
        job_curves.card_of(curves, job["name"]),
        explain.card_of(context, why, job["name"]) if job["outcome"] is None else None,
        timeline.card_of(context, job),
        job_curves.cost_card(curves),
        job_account.card_of(context, cost, report, job["name"]),
        job_account.checkpoints(context, checkpoints, job["name"]),
        _results(job),
        card(
            "events",
            "Events",
            listed(context, events[-15:], jobs=False),
            note=context.spotctl("events", job["name"]),
        ),
        _found(context, job, logs, words) if words else _output(context, job, logs),
    )


def _head(context: PageContext, job: Data, cost: Data | None, report: Data | None) -> Html:
    outlook = (cost or {}).get("outlook") or {}
    progress = job["progress"]
    steps = progress["total_steps"]
    checkpoint = job["last_checkpoint"]
    useful = (report or {}).get("usd_per_useful_gpu_hour")
    when = context.age(job["finished_at"] or progress["eta"], "unknown")
    deadline = ("; deadline ", context.age(job["deadline"])) if job["deadline"] else None
    basis: Child = (_basis(progress, outlook), deadline)
    tiles = [
        tile("Phase", phase_sign(job), places(job["where"]) if job["where"] else "no machine"),
        tile("Step", f"{job['step']:,}", _share(job) if steps else _no_total(progress)),
        tile("Recoveries", job["recoveries"], _restarts(job)),
        tile("Lost", *_lost(job)),
        tile("Saved", context.age(checkpoint["at"] if checkpoint else None, "nothing yet"),
             f"step {checkpoint['step']:,}" if checkpoint else None),
        tile("Cost", money(job["cost_usd"]), f"{money(useful)} per useful GPU-hour"),
        _drill(context, job.get("drill")),
        tile("Ended" if job["finished_at"] else "Ends", when, basis),
    ]  # fmt: skip
    return join(
        el("dl", *tiles, cls="tiles", aria_label="At a glance"),
        el("p", el("strong", "Why: "), job["outcome_text"], cls="reason")
        if job["outcome_text"]
        else None,
        _failure(context, job["failure"]),
        el("p", _next_command(context, job), cls="note"),
    )


def _no_total(progress: Data) -> str:
    least = progress.get("at_least_steps")
    return f"of at least {least:,}" if least else "the total is not known"


def _share(job: Data) -> Child:
    """Return how much of all steps is done, as text and as a bar."""
    progress = job["progress"]
    total = progress["total_steps"]
    text = f"{percent(progress['share'])} of {total:,}"
    progress_bar = bar(job["step"], total, f"{job['step']:,} of {total:,} steps")
    return (text, " ", progress_bar, " ", progress.get("total_differs"))


def _basis(progress: Data, outlook: Data) -> str:
    """Return what the end is told by: the recent rate, and the range with future interruptions."""
    if not progress["eta"]:
        return "" if progress["unknown"] == "it has ended" else progress["unknown"]
    text = "at the rate of the last 24 h"
    if not outlook.get("hours"):
        return text
    low, high = (span(outlook["hours"][name] * 3600) for name in ("low", "high"))
    return f"{text}; with interruptions to come, in {low} to {high}"


def _restarts(job: Data) -> str:
    anew = f"{job['restarts_anew']} from the beginning, " if job["restarts_anew"] else ""
    return f"{anew}attempt {job['generation']}"


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


def _failure(context: PageContext, failure: Data | None) -> Html | None:
    """Return what failed last, its cause, and the last lines of its output."""
    if failure is None:
        return None
    over = "; the job continued" if failure["over"] else ""
    when = (" (", context.age(failure["at"]), over, ")") if failure["at"] else (over,)
    told = el("p", el("strong", "Failure: "), failure["summary"], *when, cls="reason")
    if not failure["lines"] or failure["over"]:
        return told
    title = failure_title(failure)
    title = title[0].upper() + title[1:]
    text = plain("\n".join(failure["lines"]))
    return join(told, el("h3", title), el("pre", text, tabindex=0, aria_label=title))


def _next_command(context: PageContext, job: Data) -> Html:
    """Return the spotctl command that a user is likely to need next."""
    if job["outcome"]:
        return join("Its file: ", context.spotctl("show", job["name"], "--file"))
    if job["desired"] == "pause":
        return join("To continue: ", context.spotctl("resume", job["name"]))
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
        streams.setdefault(_stream_name(chunk), []).append(_text_of(chunk))
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
    return card("output", "Last output", _search_form(""), *parts, empty, note=note)


def _text_of(chunk: Data) -> str:
    """Return the text of a chunk; of a gap its mark, on lines of its own."""
    missing = chunk.get("missing")
    return f"\n--- {missing['text']} ---\n" if missing else str(chunk["text"])


def _stream_name(item: Data) -> str:
    return f"generation {item['generation']}, machine {item['rank']}, {item['stream']}"


def _search_form(words: str) -> Html:
    return el(
        "form",
        el("label", "Search ", el("input", type="search", name="search", value=words, size=20)),
        el("button", "Search"),
        "all of the stored output, the newest first",
        method="get",
        action="#output",
        cls="filter",
    )


def _found(context: PageContext, job: Data, found: Data | None, words: str) -> Html:
    """Return the lines that were found, and how far the search got."""
    note = context.spotctl("logs", job["name"], "--grep", re.escape(words))
    if found is None:
        answer = el("p", "not known: there was no answer", cls="empty")
        return card("output", "Found in the output", _search_form(words), answer, note=note)
    parts = []
    for item in found["items"]:
        name, text = _stream_name(item), "\n".join(line["text"] for line in item["lines"])
        label = f"Found in {name}"
        parts.append(join(el("h3", name), el("pre", plain(text), tabindex=0, aria_label=label)))
    reach = f"{size(found['searched_bytes'])} searched; "
    if found["missing_bytes"]:
        reach += f"{size(found['missing_bytes'])} of it were never fetched and are missing; "
    older: Child = "nothing older is left."
    if found["next"]:
        url = context.url("job", job["id"])
        link = f"{url}?{urlencode({'search': words, 'before': found['next']})}#output"
        left = f"{size(found['left_bytes'])} of older output are not searched yet: "
        older = (left, el("a", "search older output", href=link))
    none = None if parts else el("p", "No line in it has that.", cls="empty")
    far = el("p", reach, older)
    return card("output", "Found in the output", _search_form(words), *parts, none, far, note=note)


def tail_of(text: str) -> Html:
    """Return the last lines of bytes that were sent as latin-1."""
    decoded = text.encode("latin-1", "replace").decode(errors="replace")
    return plain("\n".join(decoded.splitlines()[-LOG_LINES:]))


def plain(text: str) -> Html:
    """Return lines without terminal escape sequences."""
    return lines(_ESCAPE.sub("", text))
