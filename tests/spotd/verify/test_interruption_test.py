"""A rehearsal against a daemon and a cloud that do as they are told: what went wrong is in the
report, and the job is cancelled whatever happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from providers.base import RejectedError
from providers.fault_injection import Interruption
from spotd.base.errors import UserError
from spotd.verify import interruption_test
from spotd.verify.interruption_report import Milestone, page_of, report_of, seconds_of
from spotd.verify.interruption_test import InterruptionTest

AT = "2026-11-23T10:{:02d}:{:02d}.000000Z"
START_S = seconds_of(AT.format(0, 0))


def moment(seconds: float | None) -> str | None:
    return None if seconds is None else AT.format(*divmod(int(seconds), 60))


def node(generation: int, **changes: Any) -> dict[str, Any]:
    """One that trains; times are seconds since START_S."""
    times = dict.fromkeys(
        (
            "requested_at",
            "launched_at",
            "hello_at",
            "ready_at",
            "claimed_at",
            "first_step_at",
            "released_at",
            "gone_at",
        )
    )
    facts = {
        "id": f"n{generation}",
        "generation": generation,
        "state": "running",
        "instance_id": f"i-{generation}",
        "launch_error": "",
        "leave_text": "",
        "provider": "aws",
        "region": "r",
        "zone": "r-a",
        "instance_type": "p5",
        "capacity_type": "spot",
        "local": False,
        "price_usd_per_h": 30.0,
        "step": 0,
        "notices": [],
    }
    return (
        facts
        | {key: moment(changes.get(key)) for key in times}
        | {key: value for key, value in changes.items() if key not in times}
    )


def save(step: int, at_s: int, generation: int = 1) -> dict[str, Any]:
    return {"generation": generation, "step": step, "at": moment(at_s), "trigger": "time"}


NOTICE = {
    "id": "x",
    "kind": "preempt",
    "heard_at": moment(100),
    "deadline": moment(220),
    "withdrawn": False,
    "source": "imds",
}
FIRST = node(1, requested_at=0, claimed_at=50, first_step_at=60, step=40)
LATER = NOTICE | {"id": "y", "heard_at": moment(106), "source": "queue"}
WARNED = FIRST | {"notices": [LATER, NOTICE], "step": 50}
LEFT = WARNED | {"released_at": moment(105), "gone_at": moment(130), "state": "gone"}
SECOND = node(2, requested_at=101, launched_at=103, hello_at=110, ready_at=111, state="booting")
GOING = SECOND | {"claimed_at": moment(112), "first_step_at": moment(114), "state": "running"}


class Daemon:
    """Tells `frames` one after the other, (nodes, newest checkpoint) each, the last for ever."""

    def __init__(self, *frames: tuple[list[dict[str, Any]], Any]) -> None:
        self.frames = list(frames)
        self.cancelled = False
        self.phase = ""
        self.resumed = 50
        self.stays = False

    def get(self, path: str, **query: object) -> dict[str, Any]:
        if path == "/v1/events":
            told = [
                {"kind": "claimed", "node_id": "n1", "data": {"step": 0}},
                {"kind": "claimed", "node_id": "n2", "data": {"step": self.resumed}},
            ]
            return {"items": told if not query["after"] else [], "cursor": 1}
        if path.endswith("/cost"):
            rows = [{**node(1), "paid_hours": 0.1, "spend_usd": 3.0}]
            return {"spend_usd": 3.5, "list_usd": 7.0, "nodes": rows}
        nodes, newest = self.frames.pop(0) if len(self.frames) > 1 else self.frames[0]
        if self.cancelled and not self.stays:
            nodes = [one | {"state": "gone"} for one in nodes]
        phase = "cancelled" if self.cancelled else self.phase or "running"
        text = "it diverged" if self.phase == "failed" else ""
        facts = {"id": "j", "name": "mine", "phase": phase, "outcome_text": text}
        return {**facts, "nodes": nodes, "last_checkpoint": newest}

    def post(self, path: str, body: Any = None) -> dict[str, Any]:
        assert path == "/v1/jobs/j/cancel"
        self.cancelled = True
        return {}


class Cloud:
    interruption_usd = 0.3

    def __init__(self, error: BaseException | None = None) -> None:
        self.asked: list[str] = []
        self.error = error

    def interrupt(self, instance_id: str) -> Interruption:
        self.asked.append(instance_id)
        if self.error is not None:
            raise self.error
        return Interruption("experiment 7", 0.2)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interruption_test, "LOOK_S", 0.001)
    for name in ("TRAINS_S", "SAVES_S", "RESUMES_S", "ENDS_S"):
        monkeypatch.setattr(interruption_test, name, 0.2)
    monkeypatch.setattr(interruption_test.time, "time", lambda: START_S + 90.0)


WHOLE = (
    ([node(1)], None),
    ([FIRST], None),
    ([FIRST], save(30, 80)),
    ([WARNED], save(30, 80)),
    ([WARNED, SECOND], save(50, 104)),
    ([LEFT, SECOND], save(50, 104)),
    ([LEFT, GOING], save(50, 104)),
)


def played(daemon: Daemon, cloud: Cloud, told: list[Milestone] | None = None) -> dict[str, Any]:
    rehearsal = InterruptionTest(
        daemon, cloud, "/v1/jobs/j", (told if told is not None else []).append
    )
    rehearsal.run()
    return report_of(rehearsal.seen, "aws", "2026-11-23T10:05:00Z")


def test_the_whole_way_is_measured() -> None:
    daemon, cloud, told = Daemon(*WHOLE), Cloud(), list[Milestone]()
    report = played(daemon, cloud, told)
    assert (report["ok"], report["failed"], daemon.cancelled) == (True, [], True)
    assert cloud.asked == ["i-1"]
    assert {mark["name"]: mark["seconds"] for mark in report["milestones"]} == {
        "notice heard": 10.0,
        "saved": 4.0,
        "released": 5.0,
        "replacement requested": 1.0,
        "replacement there": 3.0,
        "agent's hello": 10.0,
        "prepared, set up": 11.0,
        "trains again": 14.0,
        "old machine gone": 30.0,
    }
    assert (report["notice_lead_s"], report["saved_step"]) == (120.0, 50)
    assert (report["reached_step"], report["resumed_step"], report["steps_lost"]) == (50, 50, 0)
    assert (report["cost_usd"], report["on_demand_usd"]) == (3.5, 7.0)
    names = [mark.name for mark in told]
    assert names[:3] == ["trains", "a checkpoint", "interruption asked for"]
    assert names[-1] == "ended"
    page = page_of(report)
    assert (
        "| notice heard | 10.0 (since it was asked for) | 120.0 s before the end, by imds |" in page
    )
    cost = "Cost of the machines: 3.5000 USD (on demand: 7.0000 USD)."
    assert f"Steps lost: 0. {cost} The interruption: up to 0.30 USD, by list." in page
    assert report["interruption_usd"] == 0.3


def test_steps_that_are_trained_twice_are_counted() -> None:
    daemon = Daemon(*WHOLE)
    daemon.resumed = 30
    assert played(daemon, Cloud())["steps_lost"] == 20


def without(frame: Callable[[dict[str, Any]], dict[str, Any]]) -> tuple[Any, ...]:
    return tuple(([frame(one) for one in nodes], newest) for nodes, newest in WHOLE)


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        (WHOLE[:1], "has not come so far that it trains"),
        (WHOLE[:2], "has not come so far that it has saved a checkpoint"),
        (WHOLE[:3], "the job has not heard a notice in time"),
        (WHOLE[:6], "the job has not trained again in time"),
        (tuple((nodes, save(30, 80)) for nodes, _ in WHOLE), "saved: it did not happen"),
        (
            without(lambda one: one | {"released_at": None}),
            "released: it did not happen",
        ),
        (without(lambda one: one | {"gone_at": None}), "old machine gone: it did not happen"),
    ],
)
def test_what_did_not_happen_is_said_and_the_job_is_cancelled(
    frames: tuple[Any, ...], words: str
) -> None:
    daemon = Daemon(*frames)
    report = played(daemon, Cloud())
    assert not report["ok"]
    assert any(words in text for text in report["failed"]), report["failed"]
    assert f"- {report['failed'][0]}" in page_of(report)
    assert daemon.cancelled


def test_a_save_that_is_told_of_after_its_release_was_there_by_then() -> None:
    """The saver tells of the one, the program of the other."""
    early = without(lambda one: one | {"released_at": one["released_at"] and moment(103)})
    report = played(Daemon(*early), Cloud())
    seconds = {mark["name"]: mark["seconds"] for mark in report["milestones"]}
    assert (report["ok"], seconds["saved"], seconds["released"]) == (True, 3.0, 3.0)


def test_a_rebalance_recommendation_is_no_notice() -> None:
    daemon = Daemon(
        *WHOLE[:3], ([FIRST | {"notices": [NOTICE | {"kind": "rebalance"}]}], save(30, 80))
    )
    assert any("heard a notice" in text for text in played(daemon, Cloud())["failed"])


def test_a_refusal_of_the_cloud_is_told() -> None:
    daemon = Daemon(*WHOLE)
    report = played(daemon, Cloud(RejectedError("no such role")))
    assert "no such role" in report["failed"]
    assert (report["asked"], daemon.cancelled) == ("", True)


def test_a_job_that_ends_by_itself_is_told_with_its_reason() -> None:
    daemon = Daemon(*WHOLE[:2])
    daemon.phase = "failed"
    assert "the job failed before it was over: it diverged" in played(daemon, Cloud())["failed"]


def test_a_machine_that_stays_is_named() -> None:
    daemon = Daemon(*WHOLE)
    daemon.stays = True
    assert any(
        "still there" in text and "i-2" in text for text in played(daemon, Cloud())["failed"]
    )


def test_a_daemon_that_goes_away_is_told_in_the_report() -> None:
    class Gone(Daemon):
        def post(self, path: str, body: Any = None) -> dict[str, Any]:
            raise UserError("no daemon answers", "start it")

    rehearsal = InterruptionTest(Gone(*WHOLE), Cloud(), "/v1/jobs/j")
    with pytest.raises(UserError):
        rehearsal.run()
    report = report_of(rehearsal.seen, "aws", "2026-11-23T10:05:00Z")
    assert not report["ok"]
    assert "no daemon answers: whether the job was cancelled" in report["failed"][0]


def test_a_machine_that_took_its_place_meanwhile_is_the_one_that_is_taken() -> None:
    other = node(2, requested_at=40, claimed_at=50, first_step_at=60, step=40)
    gone = FIRST | {"state": "gone"}
    daemon = Daemon(([FIRST], None), ([gone, other], save(30, 80, 2)), ([gone, other], None))
    cloud = Cloud()
    played(daemon, cloud)
    assert cloud.asked == ["i-2"]


def test_whoever_stops_it_has_it_cancel_the_job() -> None:
    daemon = Daemon(*WHOLE)
    with pytest.raises(KeyboardInterrupt):
        played(daemon, Cloud(KeyboardInterrupt()))
    assert daemon.cancelled
