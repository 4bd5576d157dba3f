"""Following a job: its events as they come, until its phase is one that was waited for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from typing import Any

from spotd.api_client.client import Client, job_path
from spotd.base.errors import ExitCode
from spotd.cli.render import say

FINISHED = frozenset({"succeeded", "failed", "cancelled"})
_AWAY_S = 120.0  # a daemon that restarts is waited for so long
_POLL_S = 20  # what is news ends a wait at once


def follow_job(
    client: Client,
    job_id: str,
    until: Collection[str],
    tell: Callable[[dict[str, Any]], None],
    timeout_s: float = 0.0,
    after: int = 0,
) -> dict[str, Any] | None:
    """The job once its phase is in `until` or it has ended, telling each event after the id
    `after`; None when `timeout_s` (0: for ever) is over first."""
    end = time.monotonic() + timeout_s if timeout_s else None
    while True:
        job = client.patiently(lambda: client.get(job_path(job_id)), _AWAY_S)
        over = job["phase"] in until or job["phase"] in FINISHED
        left = None if end is None else end - time.monotonic()
        late = left is not None and left <= 0
        wait_s = 0 if over or late else min(_POLL_S, math.ceil(_POLL_S if left is None else left))
        after = _tell_events(client, job, after, wait_s, tell)
        if over:
            return job
        if late:
            return None


def _tell_events(
    client: Client,
    job: dict[str, Any],
    after: int,
    wait_s: int,
    tell: Callable[[dict[str, Any]], None],
) -> int:
    """Waits for events, or for another phase than the one that is known."""
    wanted = {"job": job["id"], "after": after, "wait_s": wait_s, "phase": job["phase"]}
    news = client.patiently(lambda: client.get("/v1/events", **wanted), _AWAY_S)
    for event in news["items"]:
        tell(event)
    return int(news["cursor"])


def tell_once() -> Callable[[dict[str, Any]], None]:
    """Prints the text of events, and what is said twice in a row only once."""
    last = ""

    def tell(event: dict[str, Any]) -> None:
        nonlocal last
        if event["text"] != last:
            say(f"  {event['text']}")
        last = event["text"]

    return tell


def exit_code_of(phase: str) -> ExitCode:
    """What a job's end means to a script."""
    match phase:
        case "failed":
            return ExitCode.JOB_FAILED
        case "cancelled":
            return ExitCode.JOB_CANCELLED
        case _:
            return ExitCode.OK
