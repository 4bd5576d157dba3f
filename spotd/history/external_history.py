"""Parse histories of other schedulers: spotd's own format, SkyPilot 0.14.1, and dstack 0.22.5.

Our format has a row per stay (JSON lines or CSV), SkyPilot's are rows of managed jobs, dstack's are
runs. What a log lacks stays None.
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
from spotd.history.shadow import INTERRUPTIONS, Stay, StayEnd

FIELDS = {
    "job": "which job",
    "start": "when its machines were there",
    "end": "when they were not any more; empty: they still are",
    "ended": "preempted, lost, stopped, failed, done",
    "requested": "when they were asked for",
    "trains": "when the first new step was made, or the program ran",
    "first_step": "the first step made there",
    "last_step": "and the last",
    "usd_per_hour": "of all its machines together",
    "notice_s": "how long before the end it was told",
    "where": "where",
}
LATEST_S = 253_370_764_800  # the year 9999


class HistoryError(ValueError):
    """The text does not follow the format; the message names the row and the field."""


@dataclass(frozen=True)
class History:
    """The parsed stays; `missing` are jobs about which the log says too little."""

    stays: tuple[Stay, ...]
    missing: tuple[str, ...] = ()


def read(form: str, text: str, usd_per_h: float | None = None) -> History:
    """`form` is one of FORMS; `usd_per_h` is taken where the log has no price. Raises
    HistoryError."""
    return FORMS[form](text, usd_per_h)


def guess(name: str, text: str) -> str:
    """The form of a file, by its name and its first characters."""
    if name.endswith(".csv"):
        return "csv"
    head = text[:4096]
    if '"job_submissions"' in text or '"run_spec"' in head:
        return "dstack"
    if '"new_status"' in text or '"recovery_count"' in text:
        return "skypilot"
    return "jsonl" if head.lstrip()[:1] in "{[" else "csv"


# --- a row a stay


def _rows_of_csv(text: str) -> Iterator[Mapping[str, Any]]:
    try:
        yield from csv.DictReader(text.splitlines())
    except csv.Error as error:
        raise HistoryError(f"no CSV: {error}") from None


def _documents(text: str) -> Iterator[Any]:
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
                    raise HistoryError(f"line {number} is no JSON: {error}") from None
    for value in values:
        yield from value if isinstance(value, list) else [value]


def _own(rows: Iterable[Any], usd_per_h: float | None) -> History:
    stays = []
    for number, row in enumerate(rows, start=1):
        where = f"row {number}"
        if not isinstance(row, Mapping):
            raise HistoryError(f"{where} is no object with fields")
        foreign = sorted(str(key) for key in row if key not in FIELDS)
        if foreign:
            known = ", ".join(FIELDS)
            raise HistoryError(f"{where}: there is no field {foreign[0][:50]!r}; there are {known}")
        stays.append(_own_stay(row, where, usd_per_h))
    return _checked(stays)


def _own_stay(row: Mapping[str, Any], where: str, usd_per_h: float | None) -> Stay:
    name = row.get("job")
    if not isinstance(name, str | int) or not str(name).strip():
        raise HistoryError(f"{where}: job is missing")
    start_us = _time(row.get("start"), f"{where}: start")
    if start_us is None:
        raise HistoryError(f"{where}: start is missing")
    said = str(row.get("ended") or StayEnd.UNKNOWN.value).lower()
    if said not in [end.value for end in StayEnd]:
        kinds = ", ".join(end.value for end in StayEnd)
        raise HistoryError(f"{where}: ended must be one of {kinds}, not {said[:50]!r}")
    price = _number(row.get("usd_per_hour"), f"{where}: usd_per_hour", 1e6)
    return Stay(
        str(name),
        start_us,
        _time(row.get("end"), f"{where}: end"),
        StayEnd(said),
        _time(row.get("requested"), f"{where}: requested"),
        _time(row.get("trains"), f"{where}: trains"),
        _whole(row.get("first_step"), f"{where}: first_step"),
        _whole(row.get("last_step"), f"{where}: last_step"),
        usd_per_h if price is None else price,
        _number(row.get("notice_s"), f"{where}: notice_s", 86_400),
        str(row.get("where") or ""),
    )


def _time(value: Any, what: str) -> int | None:
    """Microseconds of an ISO time with its zone, or of seconds since 1970."""
    if value is None or value == "":
        return None
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        try:
            then = datetime.fromisoformat(value)
        except (TypeError, ValueError):
            raise HistoryError(f"{what} is no time: {str(value)[:50]!r}") from None
        if then.tzinfo is None:
            text = f"{what} has no time zone: {str(value)[:50]!r}; write one like 2026-11-24T08:00Z"
            raise HistoryError(text) from None
        try:
            seconds = then.timestamp()
        except (OverflowError, ValueError):
            seconds = math.inf
    if isinstance(value, bool) or not 0 <= seconds < LATEST_S:
        raise HistoryError(f"{what} is no time: {str(value)[:50]!r}")
    return round(seconds * S)


def _number(value: Any, what: str, most: float) -> float | None:
    if value is None or value == "":
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool) or not 0 <= number <= most:
        raise HistoryError(f"{what} must be a number from 0 to {most:g}, not {str(value)[:50]!r}")
    return number


def _whole(value: Any, what: str) -> int | None:
    number = _number(value, what, 1e12)
    if number is not None and number != int(number):
        raise HistoryError(f"{what} must be a whole number, not {value!r}")
    return None if number is None else int(number)


def _checked(stays: list[Stay], missing: Iterable[str] = ()) -> History:
    """Return the stays in order, each with an end not before its start."""
    for stay in stays:
        if stay.end_us is not None and stay.end_us < stay.start_us:
            raise HistoryError(f"a stay of {stay.job} ends before it begins")
        if stay.end_us is None and stay.end in INTERRUPTIONS:
            raise HistoryError(f"a stay of {stay.job} was {stay.end.value}, and has no end")
    return History(tuple(stays), tuple(missing))


# --- SkyPilot's managed jobs: events (new_status, timestamp) and rows of the queue

_SKY_ENDS = {"SUCCEEDED": StayEnd.DONE, "CANCELLED": StayEnd.STOPPED, "CANCELLING": StayEnd.STOPPED}


def _skypilot(text: str, usd_per_h: float | None) -> History:
    """Parse SkyPilot's rows.

    A RECOVERING is a lost machine as its controller saw it, which polls every 15 s. When the next
    one was requested is not recorded. A row of the queue says only the number of recoveries, and
    for one recovery the time.
    """
    events: dict[str, list[tuple[int, str]]] = {}
    queue: dict[str, Mapping[str, Any]] = {}
    for number, row in enumerate(_documents(text), start=1):
        where = f"row {number}"
        if not isinstance(row, Mapping):
            raise HistoryError(f"{where} is no object with fields")
        task = f".{row['task_id']}" if row.get("task_id") else ""
        if "new_status" in row:
            at_us = _time(row.get("timestamp"), f"{where}: timestamp")
            if at_us is None:
                raise HistoryError(f"{where}: timestamp is missing")
            name, status = f"{row.get('spot_job_id', '')}{task}", str(row["new_status"])
            events.setdefault(name, []).append((at_us, status.rpartition(".")[2].upper()))
        elif "recovery_count" in row:
            queue[f"{row.get('job_id', '')}{task}"] = row
        else:
            raise HistoryError(f"{where} is neither an event nor a row of the queue")
    stays: list[Stay] = []
    for name, own in sorted(events.items()):
        stays += _sky_events(name, sorted(own), usd_per_h)
    missing = []
    for name, row in sorted(queue.items()):
        if name not in events:
            found = _sky_queue(name, row, usd_per_h)
            stays += found
            count = _whole(row.get("recovery_count"), f"{name}: recovery_count") or 0
            if not found and count:
                missing.append(f"job {name}: of its {count} recoveries the queue has no times")
    return _checked(stays, missing)


def _sky_events(name: str, rows: list[tuple[int, str]], usd_per_h: float | None) -> list[Stay]:
    found, since_us, asked_us = [], None, None
    for at_us, status in rows:
        end = _SKY_ENDS.get(status)
        if status.startswith("FAILED"):
            end = StayEnd.FAILED
        if status == "RECOVERING":
            end = StayEnd.LOST
        if status == "STARTING":
            asked_us = at_us
        elif status == "RUNNING" and since_us is None:
            since_us = at_us
        elif end is not None and since_us is not None:
            found.append(Stay(name, since_us, at_us, end, asked_us, since_us, usd_per_h=usd_per_h))
            since_us = asked_us = None
    if since_us is not None:
        found.append(
            Stay(name, since_us, None, StayEnd.UNKNOWN, asked_us, since_us, usd_per_h=usd_per_h)
        )
    return found


def _sky_queue(name: str, row: Mapping[str, Any], usd_per_h: float | None) -> list[Stay]:
    """`job_duration` is all the time that it ran, without recoveries."""
    at = {
        key: _time(row.get(key), f"{name}: {key}")
        for key in ("start_at", "end_at", "last_recovered_at")
    }
    ran_s = _number(row.get("job_duration"), f"{name}: job_duration", 1e9)
    count = _whole(row.get("recovery_count"), f"{name}: recovery_count")
    start_us, end_us, back_us = at["start_at"], at["end_at"], at["last_recovered_at"]
    if start_us is None or end_us is None or end_us < start_us:
        return []
    if not count:
        return [Stay(name, start_us, end_us, StayEnd.DONE, None, start_us, usd_per_h=usd_per_h)]
    if count > 1 or back_us is None or ran_s is None or not start_us <= back_us <= end_us:
        return []
    lost_us = start_us + max(0, round(ran_s * S) - (end_us - back_us))
    if lost_us > back_us:
        return []
    return [
        Stay(name, start_us, lost_us, StayEnd.LOST, None, start_us, usd_per_h=usd_per_h),
        Stay(name, back_us, end_us, StayEnd.DONE, None, back_us, usd_per_h=usd_per_h),
    ]


# --- dstack's runs: as `dstack ps --json` prints them, or the server's API

_DSTACK_ENDS = {
    "interrupted_by_no_capacity": StayEnd.PREEMPTED,
    "instance_unreachable": StayEnd.LOST,
    "done_by_runner": StayEnd.DONE,
}


def _dstack(text: str, usd_per_h: float | None) -> History:
    """Parse dstack's runs.

    A submission is a stay, requested when it was submitted, at the price of its offer. Its end is
    when the server saw it, two minutes after a machine fell silent. When it ran is not recorded.
    """
    stays: list[Stay] = []
    missing = []
    for number, document in enumerate(_documents(text), start=1):
        runs = document.get("runs", [document]) if isinstance(document, Mapping) else None
        if not isinstance(runs, list):
            raise HistoryError(f"row {number} has no runs")
        for run in runs:
            for name, rows in _dstack_jobs(run, f"row {number}"):
                stays += [_dstack_stay(name, row, usd_per_h) for row in rows]
                first = _whole(rows[0].get("submission_num"), f"{name}: submission_num")
                if first:
                    missing.append(f"{name}: its first {first} submissions are not in the log")
    stays.sort(key=lambda stay: stay.start_us)
    return _checked(stays, missing)


def _dstack_jobs(run: Any, where: str) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    jobs = run.get("jobs") if isinstance(run, Mapping) else None
    if not isinstance(run, Mapping) or not isinstance(jobs, list):
        raise HistoryError(f"{where}: a run has no jobs")
    spec = run.get("run_spec")
    base = str((spec.get("run_name") if isinstance(spec, Mapping) else "") or run.get("id", ""))
    for number, job in enumerate(jobs):
        rows = job.get("job_submissions") if isinstance(job, Mapping) else None
        if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
            raise HistoryError(f"{where}: a job of {base[:50]} has no job_submissions")
        if rows:
            yield f"{base}-{number}", rows


def _dstack_stay(name: str, row: Mapping[str, Any], usd_per_h: float | None) -> Stay:
    start_us = _time(row.get("submitted_at"), f"{name}: submitted_at")
    if start_us is None:
        raise HistoryError(f"{name}: submitted_at is missing")
    end_us = _time(row.get("finished_at"), f"{name}: finished_at")
    data = row.get("job_provisioning_data")
    given: Mapping[str, Any] = data if isinstance(data, Mapping) else {}
    price = _number(given.get("price"), f"{name}: price", 1e6)
    reason = str(row.get("termination_reason") or "")
    end = StayEnd.UNKNOWN if end_us is None else _DSTACK_ENDS.get(reason, StayEnd.STOPPED)
    if not given and end in INTERRUPTIONS:
        end = StayEnd.STOPPED  # it never had a machine
    where = "/".join(str(given[key]) for key in ("backend", "region") if given.get(key))
    rate = usd_per_h if price is None else price
    return Stay(name, start_us, end_us, end, start_us, usd_per_h=rate, where=where)


FORMS: Mapping[str, Callable[[str, float | None], History]] = {
    "spotd": lambda text, usd: _own(_documents(text), usd),
    "jsonl": lambda text, usd: _own(_documents(text), usd),
    "csv": lambda text, usd: _own(_rows_of_csv(text), usd),
    "skypilot": _skypilot,
    "dstack": _dstack,
}
