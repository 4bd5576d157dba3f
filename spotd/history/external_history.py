"""Parse histories of other schedulers: spotd's own format, SkyPilot 0.14.1, and dstack 0.22.5.

spotd's format has a row per attempt (JSON lines or CSV), SkyPilot's has rows of managed jobs,
dstack's has runs. Values that a log lacks are None.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from spotd.domain.units import S
from spotd.history.shadow import INTERRUPTIONS, Attempt, AttemptEnd

FIELDS = {
    "job": "which job",
    "start": "when its machines were there",
    "end": "when they were not any more; empty: they still are",
    "ended": "preempted, lost, stopped, failed, done",
    "requested": "when they were requested",
    "trains": "when the first new step was made, or the program ran",
    "first_step": "the first step made there",
    "last_step": "and the last",
    "usd_per_hour": "of all its machines together",
    "notice_s": "how long before the end the notice came",
    "where": "where",
}
LATEST_S = 253_370_764_800  # the year 9999


class HistoryError(ValueError):
    """The text does not follow the format; the message names the row and the field."""


@dataclass(frozen=True)
class History:
    """The parsed attempts; `missing` describes jobs with too little data in the log."""

    attempts: tuple[Attempt, ...]
    missing: tuple[str, ...] = ()


def read_history(form: str, text: str, usd_per_h: float | None = None) -> History:
    """Parse a log. `form` is one of FORMS; `usd_per_h` is used if the log has no price.

    Raises HistoryError.
    """
    return FORMS[form](text, usd_per_h)


def guess_format(name: str, text: str) -> str:
    """Guess the format of a file from its name and content."""
    if name.endswith(".csv"):
        return "csv"
    head = text[:4096]
    if '"job_submissions"' in text or '"run_spec"' in head:
        return "dstack"
    if '"new_status"' in text or '"recovery_count"' in text:
        return "skypilot"
    return "jsonl" if head.lstrip()[:1] in "{[" else "csv"


# --- a row per attempt


def _rows_of_csv(text: str) -> Iterator[Mapping[str, Any]]:
    try:
        yield from csv.DictReader(text.splitlines())
    except csv.Error as error:
        raise HistoryError(f"no CSV: {error}") from None


def _json_documents(text: str) -> Iterator[Any]:
    """Yield the objects of one JSON value, or of one per line; lists are flattened."""
    try:
        values = [json.loads(text)]
    except (ValueError, RecursionError):
        values = []
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip():
                try:
                    values.append(json.loads(line))
                except (ValueError, RecursionError) as error:
                    raise HistoryError(f"line {number} is not JSON: {error}") from None
    for value in values:
        yield from value if isinstance(value, list) else [value]


def _parse_rows(rows: Iterable[Any], usd_per_h: float | None) -> History:
    attempts = []
    for number, row in enumerate(rows, start=1):
        row_name = f"row {number}"
        if not isinstance(row, Mapping):
            raise HistoryError(f"{row_name} is not an object with fields")
        unknown = sorted(str(key) for key in row if key not in FIELDS)
        if unknown:
            known = ", ".join(FIELDS)
            raise HistoryError(
                f"{row_name}: there is no field {unknown[0][:50]!r}; there are {known}"
            )
        attempts.append(_parse_row(row, row_name, usd_per_h))
    return _check(attempts)


def _parse_row(row: Mapping[str, Any], row_name: str, usd_per_h: float | None) -> Attempt:
    name = row.get("job")
    if not isinstance(name, str | int) or not str(name).strip():
        raise HistoryError(f"{row_name}: job is missing")
    start_us = _time(row.get("start"), f"{row_name}: start")
    if start_us is None:
        raise HistoryError(f"{row_name}: start is missing")
    ended = str(row.get("ended") or AttemptEnd.UNKNOWN.value).lower()
    if ended not in [end.value for end in AttemptEnd]:
        kinds = ", ".join(end.value for end in AttemptEnd)
        raise HistoryError(f"{row_name}: ended must be one of {kinds}, not {ended[:50]!r}")
    price = _number(row.get("usd_per_hour"), f"{row_name}: usd_per_hour", 1e6)
    return Attempt(
        str(name),
        start_us,
        _time(row.get("end"), f"{row_name}: end"),
        AttemptEnd(ended),
        _time(row.get("requested"), f"{row_name}: requested"),
        _time(row.get("trains"), f"{row_name}: trains"),
        _integer(row.get("first_step"), f"{row_name}: first_step"),
        _integer(row.get("last_step"), f"{row_name}: last_step"),
        usd_per_h if price is None else price,
        _number(row.get("notice_s"), f"{row_name}: notice_s", 86_400),
        str(row.get("where") or ""),
    )


def _time(value: Any, name: str) -> int | None:
    """Parse an ISO time with its zone, or seconds since 1970, into microseconds."""
    if value is None or value == "":
        return None
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        try:
            moment = datetime.fromisoformat(value)
        except (TypeError, ValueError):
            raise HistoryError(f"{name} is not a time: {str(value)[:50]!r}") from None
        if moment.tzinfo is None:
            message = (
                f"{name} has no time zone: {str(value)[:50]!r}; write one like 2026-11-24T08:00Z"
            )
            raise HistoryError(message) from None
        try:
            seconds = moment.timestamp()
        except (OverflowError, ValueError):
            seconds = math.inf
    if isinstance(value, bool) or not 0 <= seconds < LATEST_S:
        raise HistoryError(f"{name} is not a time: {str(value)[:50]!r}")
    return round(seconds * S)


def _number(value: Any, name: str, maximum: float) -> float | None:
    if value is None or value == "":
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool) or not 0 <= number <= maximum:
        raise HistoryError(
            f"{name} must be a number from 0 to {maximum:g}, not {str(value)[:50]!r}"
        )
    return number


def _integer(value: Any, name: str) -> int | None:
    number = _number(value, name, 1e12)
    if number is not None and number != int(number):
        raise HistoryError(f"{name} must be a whole number, not {value!r}")
    return None if number is None else int(number)


def _check(attempts: list[Attempt], missing: Iterable[str] = ()) -> History:
    """Check that every attempt ends after its start, and return the history."""
    for attempt in attempts:
        if attempt.end_us is not None and attempt.end_us < attempt.start_us:
            raise HistoryError(f"a stay of {attempt.job} ends before it begins")
        if attempt.end_us is None and attempt.end in INTERRUPTIONS:
            raise HistoryError(f"a stay of {attempt.job} was {attempt.end.value}, and has no end")
    return History(tuple(attempts), tuple(missing))


# --- SkyPilot's managed jobs: events (new_status, timestamp) and rows of the queue

_SKY_ENDS = {
    "SUCCEEDED": AttemptEnd.DONE,
    "CANCELLED": AttemptEnd.STOPPED,
    "CANCELLING": AttemptEnd.STOPPED,
}


def _skypilot(text: str, usd_per_h: float | None) -> History:
    """Parse SkyPilot's rows.

    A RECOVERING is a lost machine as its controller saw it, which polls every 15 s. When the next
    one was requested is not recorded. A row of the queue says only the number of recoveries, and
    for one recovery the time.
    """
    events: dict[str, list[tuple[int, str]]] = {}
    queue: dict[str, Mapping[str, Any]] = {}
    for number, row in enumerate(_json_documents(text), start=1):
        row_name = f"row {number}"
        if not isinstance(row, Mapping):
            raise HistoryError(f"{row_name} is not an object with fields")
        task = f".{row['task_id']}" if row.get("task_id") else ""
        if "new_status" in row:
            at_us = _time(row.get("timestamp"), f"{row_name}: timestamp")
            if at_us is None:
                raise HistoryError(f"{row_name}: timestamp is missing")
            name, status = f"{row.get('spot_job_id', '')}{task}", str(row["new_status"])
            events.setdefault(name, []).append((at_us, status.rpartition(".")[2].upper()))
        elif "recovery_count" in row:
            queue[f"{row.get('job_id', '')}{task}"] = row
        else:
            raise HistoryError(f"{row_name} is neither an event nor a row of the queue")
    attempts: list[Attempt] = []
    for name, rows in sorted(events.items()):
        attempts += _sky_events(name, sorted(rows), usd_per_h)
    missing = []
    for name, row in sorted(queue.items()):
        if name not in events:
            parsed = _sky_queue(name, row, usd_per_h)
            attempts += parsed
            count = _integer(row.get("recovery_count"), f"{name}: recovery_count") or 0
            if not parsed and count:
                missing.append(f"job {name}: of its {count} recoveries the queue has no times")
    return _check(attempts, missing)


def _sky_events(name: str, rows: list[tuple[int, str]], usd_per_h: float | None) -> list[Attempt]:
    attempts, since_us, requested_us = [], None, None
    for at_us, status in rows:
        end = _SKY_ENDS.get(status)
        if status.startswith("FAILED"):
            end = AttemptEnd.FAILED
        if status == "RECOVERING":
            end = AttemptEnd.LOST
        if status == "STARTING":
            requested_us = at_us
        elif status == "RUNNING" and since_us is None:
            since_us = at_us
        elif end is not None and since_us is not None:
            attempts.append(
                Attempt(name, since_us, at_us, end, requested_us, since_us, usd_per_h=usd_per_h)
            )
            since_us = requested_us = None
    if since_us is not None:
        attempts.append(
            Attempt(
                name,
                since_us,
                None,
                AttemptEnd.UNKNOWN,
                requested_us,
                since_us,
                usd_per_h=usd_per_h,
            )
        )
    return attempts


def _sky_queue(name: str, row: Mapping[str, Any], usd_per_h: float | None) -> list[Attempt]:
    """Parse a row of the queue. `job_duration` is the running time without recoveries."""
    times = {
        key: _time(row.get(key), f"{name}: {key}")
        for key in ("start_at", "end_at", "last_recovered_at")
    }
    ran_s = _number(row.get("job_duration"), f"{name}: job_duration", 1e9)
    count = _integer(row.get("recovery_count"), f"{name}: recovery_count")
    start_us, end_us, back_us = times["start_at"], times["end_at"], times["last_recovered_at"]
    if start_us is None or end_us is None or end_us < start_us:
        return []
    if not count:
        return [
            Attempt(name, start_us, end_us, AttemptEnd.DONE, None, start_us, usd_per_h=usd_per_h)
        ]
    if count > 1 or back_us is None or ran_s is None or not start_us <= back_us <= end_us:
        return []
    lost_us = start_us + max(0, round(ran_s * S) - (end_us - back_us))
    if lost_us > back_us:
        return []
    return [
        Attempt(name, start_us, lost_us, AttemptEnd.LOST, None, start_us, usd_per_h=usd_per_h),
        Attempt(name, back_us, end_us, AttemptEnd.DONE, None, back_us, usd_per_h=usd_per_h),
    ]


# --- dstack's runs: as `dstack ps --json` prints them, or the server's API

_DSTACK_ENDS = {
    "interrupted_by_no_capacity": AttemptEnd.PREEMPTED,
    "instance_unreachable": AttemptEnd.LOST,
    "done_by_runner": AttemptEnd.DONE,
}


def _dstack(text: str, usd_per_h: float | None) -> History:
    """Parse dstack's runs.

    A submission is an attempt, requested when it was submitted, at the price of its offer. Its end
    is when the server noticed it, two minutes after a machine fell silent. The time when it started
    to run is not recorded.
    """
    attempts: list[Attempt] = []
    missing = []
    for number, document in enumerate(_json_documents(text), start=1):
        runs = document.get("runs", [document]) if isinstance(document, Mapping) else None
        if not isinstance(runs, list):
            raise HistoryError(f"row {number} has no runs")
        for run in runs:
            for name, rows in _dstack_jobs(run, f"row {number}"):
                attempts += [_dstack_attempt(name, row, usd_per_h) for row in rows]
                first = _integer(rows[0].get("submission_num"), f"{name}: submission_num")
                if first:
                    missing.append(f"{name}: its first {first} submissions are not in the log")
    attempts.sort(key=lambda attempt: attempt.start_us)
    return _check(attempts, missing)


def _dstack_jobs(run: Any, row_name: str) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    jobs = run.get("jobs") if isinstance(run, Mapping) else None
    if not isinstance(run, Mapping) or not isinstance(jobs, list):
        raise HistoryError(f"{row_name}: a run has no jobs")
    spec = run.get("run_spec")
    base = str((spec.get("run_name") if isinstance(spec, Mapping) else "") or run.get("id", ""))
    for number, job in enumerate(jobs):
        rows = job.get("job_submissions") if isinstance(job, Mapping) else None
        if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
            raise HistoryError(f"{row_name}: a job of {base[:50]} has no job_submissions")
        if rows:
            yield f"{base}-{number}", rows


def _dstack_attempt(name: str, row: Mapping[str, Any], usd_per_h: float | None) -> Attempt:
    start_us = _time(row.get("submitted_at"), f"{name}: submitted_at")
    if start_us is None:
        raise HistoryError(f"{name}: submitted_at is missing")
    end_us = _time(row.get("finished_at"), f"{name}: finished_at")
    data = row.get("job_provisioning_data")
    provisioning: Mapping[str, Any] = data if isinstance(data, Mapping) else {}
    price = _number(provisioning.get("price"), f"{name}: price", 1e6)
    reason = str(row.get("termination_reason") or "")
    end = AttemptEnd.UNKNOWN if end_us is None else _DSTACK_ENDS.get(reason, AttemptEnd.STOPPED)
    if not provisioning and end in INTERRUPTIONS:
        end = AttemptEnd.STOPPED  # it never had a machine
    location = "/".join(
        str(provisioning[key]) for key in ("backend", "region") if provisioning.get(key)
    )
    rate = usd_per_h if price is None else price
    return Attempt(name, start_us, end_us, end, start_us, usd_per_h=rate, where=location)


FORMS: Mapping[str, Callable[[str, float | None], History]] = {
    "spotd": lambda text, usd: _parse_rows(_json_documents(text), usd),
    "jsonl": lambda text, usd: _parse_rows(_json_documents(text), usd),
    "csv": lambda text, usd: _parse_rows(_rows_of_csv(text), usd),
    "skypilot": _skypilot,
    "dstack": _dstack,
}
