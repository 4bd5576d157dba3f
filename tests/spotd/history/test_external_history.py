"""Logs of others: what is read of each, and what is refused with the row and the field."""

from __future__ import annotations

import json

import pytest

from spotd.domain.units import S
from spotd.history.external_history import HistoryError, guess_format, read_history
from spotd.history.shadow import Attempt, AttemptEnd

CSV = """\
job,start,end,ended,requested,trains,first_step,last_step,usd_per_hour,notice_s,where
gpt,2026-11-01T00:00Z,2026-11-01T01:00Z,preempted,,2026-11-01T00:05:00Z,0,1649,19.93,120,aws/us-east-1a
gpt,1793495700,,,1793494845,,1500,,,,
"""
T0 = 1_793_491_200 * S


def test_a_row_a_stay() -> None:
    first, second = read_history("csv", CSV).attempts
    assert first == Attempt(
        job="gpt",
        start_us=T0,
        end_us=T0 + 3600 * S,
        end=AttemptEnd.PREEMPTED,
        requested_us=None,
        trains_us=T0 + 300 * S,
        first_step=0,
        last_step=1649,
        usd_per_h=19.93,
        notice_s=120.0,
        where="aws/us-east-1a",
    )
    assert second == Attempt(
        "gpt", T0 + 4500 * S, None, AttemptEnd.UNKNOWN, T0 + 3645 * S, None, 1500
    )
    assert read_history("csv", CSV, 4.0).attempts[1].usd_per_h == 4.0


def test_json_lines_and_a_list_are_the_same() -> None:
    rows = [{"job": "a", "start": 5, "end": 9.5, "ended": "DONE"}, {"job": 7, "start": "6"}]
    lines = "\n".join(json.dumps(row) for row in rows) + "\n\n"
    assert read_history("jsonl", lines) == read_history("spotd", json.dumps(rows))
    assert read_history("jsonl", lines).attempts[0] == Attempt(
        "a", 5 * S, 9_500_000, AttemptEnd.DONE
    )


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"start": 1}, "row 1: job is missing"),
        ({"job": "a"}, "row 1: start is missing"),
        ({"job": "a", "start": "soon"}, "row 1: start is not a time: 'soon'"),
        ({"job": "a", "start": "2026-11-01T00:00"}, "row 1: start has no time zone"),
        ({"job": "a", "start": -1}, "row 1: start is not a time"),
        ({"job": "a", "start": True}, "row 1: start is not a time"),
        ({"job": "a", "start": "nan"}, "row 1: start is not a time"),
        ({"job": "a", "start": 1, "ended": "eaten"}, "row 1: ended must be one of preempted, lost"),
        ({"job": "a", "start": 1, "last_step": 1.5}, "row 1: last_step must be a whole number"),
        ({"job": "a", "start": 1, "usd_per_hour": -2}, "usd_per_hour must be a number from 0"),
        ({"job": "a", "start": 1, "price": 2}, "row 1: there is no field 'price'; there are job"),
        ({"job": "a", "start": 9, "end": 1}, "a stay of a ends before it begins"),
        ({"job": "a", "start": 9, "ended": "lost"}, "a stay of a was lost, and has no end"),
        (["a", 9], "row 1: job is missing"),
    ],
)
def test_what_is_refused(row: object, text: str) -> None:
    given = [row] if isinstance(row, dict) else [{"start": 1}]
    with pytest.raises(HistoryError, match=text):
        read_history("spotd", json.dumps(given))


def test_no_json() -> None:
    with pytest.raises(HistoryError, match="line 2 is not JSON"):
        read_history("jsonl", '{"job": "a", "start": 1}\n{')
    with pytest.raises(HistoryError, match="row 1 is not an object"):
        read_history("jsonl", "[1]")


def event(status: str, at: str, job: int = 3) -> dict[str, object]:
    """As get_job_events of SkyPilot 0.14.1 has them."""
    return {
        "spot_job_id": job,
        "task_id": 0,
        "new_status": status,
        "code": None,
        "reason": "",
        "timestamp": f"2026-11-01T{at}+00:00",
    }


SKY = [
    event("SUCCEEDED", "03:00:00"),
    event("RUNNING", "01:06:00"),
    event("RECOVERING", "01:00:00"),
    event("RUNNING", "00:04:00"),
    event("STARTING", "00:00:00"),
    event("PENDING", "00:00:00"),
]


def test_skypilot_s_events() -> None:
    first, second = read_history("skypilot", json.dumps(SKY), 8.0).attempts
    minute = 60 * S
    assert first == Attempt(
        job="3",
        start_us=T0 + 4 * minute,
        end_us=T0 + 60 * minute,
        end=AttemptEnd.LOST,
        requested_us=T0,
        trains_us=T0 + 4 * minute,
        usd_per_h=8.0,
    )
    assert (second.start_us, second.end) == (T0 + 66 * minute, AttemptEnd.DONE)
    assert second.requested_us is None, "RECOVERING is when they saw it, not when they asked"


def test_skypilot_s_queue_where_one_recovery_tells_its_times() -> None:
    row = {
        "job_id": 4,
        "recovery_count": 1,
        "start_at": 1000.0,
        "last_recovered_at": 5000.0,
        "end_at": 9000.0,
        "job_duration": 7500.0,
        "status": "SUCCEEDED",
    }
    first, second = read_history("skypilot", json.dumps([row])).attempts
    assert (first.start_us, first.end_us, first.end) == (1000 * S, 4500 * S, AttemptEnd.LOST)
    assert (second.start_us, second.end_us, second.end) == (5000 * S, 9000 * S, AttemptEnd.DONE)
    many = read_history("skypilot", json.dumps([{**row, "recovery_count": 4}]))
    assert many.attempts == ()
    assert many.missing == ("job 4: of its 4 recoveries the queue has no times",)
    (none,) = read_history("skypilot", json.dumps([{**row, "recovery_count": 0}])).attempts
    assert none.end is AttemptEnd.DONE


def submission(number: int, at: str, end: str | None, reason: str | None) -> dict[str, object]:
    """As dstack 0.22.5 has a JobSubmission, of its fields those that matter."""
    return {
        "id": f"{number}",
        "submission_num": number,
        "status": "failed",
        "submitted_at": f"2026-11-01T{at}+00:00",
        "finished_at": end and f"2026-11-01T{end}+00:00",
        "termination_reason": reason,
        "job_provisioning_data": {"backend": "aws", "region": "us-east-1", "price": 19.93},
    }


def dstack(*rows: dict[str, object]) -> str:
    run = {"id": "r", "run_spec": {"run_name": "gpt"}, "jobs": [{"job_submissions": list(rows)}]}
    return json.dumps({"project": "main", "runs": [run]})


def test_dstack_s_submissions() -> None:
    first = submission(0, "00:00:00", "01:00:00", "interrupted_by_no_capacity")
    second = submission(1, "01:00:33", None, None)
    result = read_history("dstack", dstack(first, second))
    assert result.missing == ()
    item, two = result.attempts
    assert item == Attempt(
        job="gpt-0",
        start_us=T0,
        end_us=T0 + 3600 * S,
        end=AttemptEnd.PREEMPTED,
        requested_us=T0,
        usd_per_h=19.93,
        where="aws/us-east-1",
    )
    assert (two.requested_us, two.end, two.end_us) == (T0 + 3633 * S, AttemptEnd.UNKNOWN, None)
    gone = read_history(
        "dstack", dstack(submission(3, "00:00:00", "01:00:00", "instance_unreachable"))
    )
    assert gone.attempts[0].end is AttemptEnd.LOST
    assert gone.missing == ("gpt-0: its first 3 submissions are not in the log",)


def test_a_submission_without_a_machine_lost_none() -> None:
    row = submission(0, "00:00:00", "01:00:00", "interrupted_by_no_capacity")
    row["job_provisioning_data"] = None
    assert read_history("dstack", dstack(row)).attempts[0].end is AttemptEnd.STOPPED


@pytest.mark.parametrize("text", ["[3]", '{"runs": 3}', '{"jobs": [3]}', "{}", '[{"jobs": 3}]'])
def test_no_dstack(text: str) -> None:
    with pytest.raises(HistoryError):
        read_history("dstack", text)


def test_forms_are_guessed() -> None:
    assert guess_format("a.csv", "{") == "csv"
    assert guess_format("a.json", json.dumps(SKY)) == "skypilot"
    assert guess_format("a.json", dstack(submission(0, "00:00:00", None, None))) == "dstack"
    assert guess_format("a.jsonl", '{"job": "a", "start": 1}') == "jsonl"
    assert guess_format("-", CSV) == "csv"
