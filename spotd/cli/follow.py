"""Following a job: reports its events as they arrive, until it reaches a phase."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from typing import Any

from spotd.api_client.client import Client
from spotd.api_client.wording import event_text
from spotd.api_routes import routes
from spotd.base.errors import ExitCode
from spotd.cli.render import print_message

FINISHED = frozenset({"succeeded", "failed", "cancelled"})
_AWAY_S = 120.0  # how long to wait for a daemon that restarts
_POLL_S = 20  # length of one long poll; a new event ends it at once


def follow_job(
    client: Client,
    job_id: str,
    until: Collection[str],
    on_event: Callable[[dict[str, Any]], None],
    timeout_s: float = 0.0,
    after: int = 0,
) -> dict[str, Any] | None:
    """Wait until the job's phase is in `until` or it has ended, and return the job.

    Calls `on_event` for each event after the id `after`. Returns None when `timeout_s` seconds are
    over first; 0 waits for ever.
    """
    give_up_at = time.monotonic() + timeout_s if timeout_s else None
    while True:
        job = client.with_retry(lambda: client.call(routes.SHOW_JOB(job=job_id)), _AWAY_S)
        finished = job["phase"] in until or job["phase"] in FINISHED
        remaining_s = None if give_up_at is None else give_up_at - time.monotonic()
        timed_out = remaining_s is not None and remaining_s <= 0
        wait_s = (
            0
            if finished or timed_out
            else min(_POLL_S, math.ceil(_POLL_S if remaining_s is None else remaining_s))
        )
        after = _report_events(
            client=client, job=job, after=after, wait_s=wait_s, on_event=on_event
        )
        if finished:
            return job
        if timed_out:
            return None


def _report_events(
    client: Client,
    job: dict[str, Any],
    after: int,
    wait_s: int,
    on_event: Callable[[dict[str, Any]], None],
) -> int:
    """Wait for new events or another phase, and report the events; returns the new cursor."""
    query = {"job": job["id"], "after": after, "wait_s": wait_s, "phase": job["phase"]}
    page = client.with_retry(lambda: client.call(routes.READ_EVENTS(), query=query), _AWAY_S)
    for event in page["items"]:
        on_event(event)
    return int(page["cursor"])


def follow_and_print(
    client: Client, job: dict[str, Any], until: Collection[str], announcement: str = ""
) -> dict[str, Any]:
    """Follow the job until its phase is in `until` or it has ended, and print its events.

    Returns the job. Ctrl-C prints how to go on, and does not stop the job: it counts from the
    `announcement` on, which is printed first.
    """
    try:
        if announcement:
            print_message(announcement)
        followed = follow_job(client, job_id=job["id"], until=until, on_event=event_printer())
    except KeyboardInterrupt:
        name = job["name"]
        print_message(f"\n{name} continues: spotctl events -f {name}, or spotctl cancel")
        raise
    return followed or job


def event_printer() -> Callable[[dict[str, Any]], None]:
    """Return a function that prints the text of events, skipping consecutive repetitions."""
    last = ""

    def print_event(event: dict[str, Any]) -> None:
        nonlocal last
        text = event_text(event)
        if text != last:
            print_message(f"  {text}")
        last = text

    return print_event


def exit_code_for(phase: str) -> ExitCode:
    """Return the exit code of `spotctl` for a job that ended in `phase`."""
    match phase:
        case "failed":
            return ExitCode.JOB_FAILED
        case "cancelled":
            return ExitCode.JOB_CANCELLED
        case _:
            return ExitCode.OK
