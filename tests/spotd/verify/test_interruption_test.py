"""Test interruption tests with a fake daemon and a fake cloud.

Failures are in the report, and the job is cancelled whatever happens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from providers.base import RejectedError
from providers.fault_injection import Interruption
from spotd.api_routes import routes
from spotd.api_routes.operation import Endpoint
from spotd.base.errors import UserError
from spotd.verify import interruption_test
from spotd.verify.interruption_report import Milestone, build_report, render_markdown, unix_seconds
from spotd.verify.interruption_test import InterruptionTest

AT = "2026-11-23T10:{:02d}:{:02d}.000000Z"
START_S = unix_seconds(AT.format(0, 0))


def moment(seconds: float | None) -> str | None:
    return None if seconds is None else AT.format(*divmod(int(seconds), 60))


def node(generation: int, **changes: Any) -> dict[str, Any]:
    """A training node; times are seconds since START_S."""
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
RELEASED = WARNED | {"released_at": moment(105), "gone_at": moment(130), "state": "gone"}
SECOND = node(2, requested_at=101, launched_at=103, hello_at=110, ready_at=111, state="booting")
RESUMED = SECOND | {"claimed_at": moment(112), "first_step_at": moment(114), "state": "running"}


class Daemon:
    """Returns `frames` one after the other, (nodes, newest checkpoint) each; repeats the last."""

    def __init__(self, *frames: tuple[list[dict[str, Any]], Any]) -> None:
        self.frames = list(frames)
        self.cancelled = False
        self.phase = ""
        self.resumed = 50
        self.stays = False

    def call(
        self, endpoint: Endpoint, *, query: Mapping[str, object] | None = None
    ) -> dict[str, Any]:
        if endpoint.operation is routes.CANCEL_JOB:
            return self.cancel(endpoint)
        if endpoint.operation is routes.READ_EVENTS:
            events = [
                {"kind": "claimed", "node_id": "n1", "data": {"step": 0}},
                {"kind": "claimed", "node_id": "n2", "data": {"step": self.resumed}},
            ]
            return {"items": events if not (query or {})["after"] else [], "cursor": 1}
        if endpoint.operation is routes.JOB_COST:
            rows = [{**node(1), "paid_hours": 0.1, "spend_usd": 3.0}]
            return {"spend_usd": 3.5, "list_usd": 7.0, "nodes": rows}
        nodes, newest = self.frames.pop(0) if len(self.frames) > 1 else self.frames[0]
        if self.cancelled and not self.stays:
            nodes = [node_ | {"state": "gone"} for node_ in nodes]
        phase = "cancelled" if self.cancelled else self.phase or "running"
        text = "it diverged" if self.phase == "failed" else ""
        facts = {"id": "j", "name": "mine", "phase": phase, "outcome_text": text}
        return {**facts, "nodes": nodes, "last_checkpoint": newest}

    def cancel(self, endpoint: Endpoint) -> dict[str, Any]:
        assert endpoint.path == "/v1/jobs/j/cancel"
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
    monkeypatch.setattr(interruption_test, "POLL_S", 0.001)
    for name in ("TRAIN_TIMEOUT_S", "SAVE_TIMEOUT_S", "RESUME_TIMEOUT_S", "END_TIMEOUT_S"):
        monkeypatch.setattr(interruption_test, name, 0.2)
    monkeypatch.setattr(interruption_test.time, "time", lambda: START_S + 90.0)


ALL_FRAMES = (
    ([node(1)], None),
    ([FIRST], None),
    ([FIRST], save(30, 80)),
    ([WARNED], save(30, 80)),
    ([WARNED, SECOND], save(50, 104)),
    ([RELEASED, SECOND], save(50, 104)),
    ([RELEASED, RESUMED], save(50, 104)),
)


def run_test(
    daemon: Daemon, cloud: Cloud, milestones: list[Milestone] | None = None
) -> dict[str, Any]:
    test_run = InterruptionTest(
        daemon, cloud, "j", (milestones if milestones is not None else []).append
    )
    test_run.run()
    return build_report(test_run.observations, "aws", "2026-11-23T10:05:00Z")


def test_a_recovery_is_measured() -> None:
    daemon, cloud, milestones = Daemon(*ALL_FRAMES), Cloud(), list[Milestone]()
    report = run_test(daemon, cloud, milestones)
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
    names = [mark.name for mark in milestones]
    assert names[:3] == ["trains", "a checkpoint", "interruption requested"]
    assert names[-1] == "ended"
    page = render_markdown(report)
    assert (
        "| notice heard | 10.0 (since it was requested) | 120.0 s before the end, by imds |" in page
    )
    cost = "Cost of the machines: $3.50 (on demand: $7.00)."
    assert f"Steps lost: 0. {cost} The interruption: up to $0.3000, by list." in page
    assert report["interruption_usd"] == 0.3


def test_steps_that_are_trained_twice_are_counted() -> None:
    daemon = Daemon(*ALL_FRAMES)
    daemon.resumed = 30
    assert run_test(daemon, Cloud())["steps_lost"] == 20


def without(frame: Callable[[dict[str, Any]], dict[str, Any]]) -> tuple[Any, ...]:
    return tuple(([frame(node_) for node_ in nodes], newest) for nodes, newest in ALL_FRAMES)


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        (ALL_FRAMES[:1], "the job has not started training within"),
        (ALL_FRAMES[:2], "the job has not saved a checkpoint within"),
        (ALL_FRAMES[:3], "the job has not heard a notice in time"),
        (ALL_FRAMES[:6], "the job has not trained again in time"),
        (tuple((nodes, save(30, 80)) for nodes, _ in ALL_FRAMES), "saved: it did not happen"),
        (
            without(lambda one: one | {"released_at": None}),
            "released: it did not happen",
        ),
        (without(lambda one: one | {"gone_at": None}), "old machine gone: it did not happen"),
    ],
)
def test_missing_milestones_are_reported_and_the_job_is_cancelled(
    frames: tuple[Any, ...], message: str
) -> None:
    daemon = Daemon(*frames)
    report = run_test(daemon, Cloud())
    assert not report["ok"]
    assert any(message in text for text in report["failed"]), report["failed"]
    assert f"- {report['failed'][0]}" in render_markdown(report)
    assert daemon.cancelled


def test_a_save_reported_after_its_release_counts_at_the_release() -> None:
    """The saver reports the save, the program the release."""
    early = without(lambda one: one | {"released_at": one["released_at"] and moment(103)})
    report = run_test(Daemon(*early), Cloud())
    seconds = {mark["name"]: mark["seconds"] for mark in report["milestones"]}
    assert (report["ok"], seconds["saved"], seconds["released"]) == (True, 3.0, 3.0)


def test_a_rebalance_recommendation_is_no_notice() -> None:
    daemon = Daemon(
        *ALL_FRAMES[:3], ([FIRST | {"notices": [NOTICE | {"kind": "rebalance"}]}], save(30, 80))
    )
    assert any("heard a notice" in text for text in run_test(daemon, Cloud())["failed"])


def test_a_refusal_of_the_cloud_is_told() -> None:
    daemon = Daemon(*ALL_FRAMES)
    report = run_test(daemon, Cloud(RejectedError("no such role")))
    assert "no such role" in report["failed"]
    assert (report["asked"], daemon.cancelled) == ("", True)


def test_a_job_that_ends_by_itself_is_told_with_its_reason() -> None:
    daemon = Daemon(*ALL_FRAMES[:2])
    daemon.phase = "failed"
    assert "the job failed before it was over: it diverged" in run_test(daemon, Cloud())["failed"]


def test_a_machine_that_stays_is_named() -> None:
    daemon = Daemon(*ALL_FRAMES)
    daemon.stays = True
    assert any(
        "still there" in text and "i-2" in text for text in run_test(daemon, Cloud())["failed"]
    )


def test_a_daemon_that_goes_away_is_told_in_the_report() -> None:
    class Gone(Daemon):
        def cancel(self, endpoint: Endpoint) -> dict[str, Any]:
            raise UserError("no daemon answers", "start it")

    test_run = InterruptionTest(Gone(*ALL_FRAMES), Cloud(), "j")
    with pytest.raises(UserError):
        test_run.run()
    report = build_report(test_run.observations, "aws", "2026-11-23T10:05:00Z")
    assert not report["ok"]
    assert "no daemon answers: whether the job was cancelled" in report["failed"][0]


def test_the_machine_that_trains_now_is_interrupted() -> None:
    other = node(2, requested_at=40, claimed_at=50, first_step_at=60, step=40)
    gone = FIRST | {"state": "gone"}
    daemon = Daemon(([FIRST], None), ([gone, other], save(30, 80, 2)), ([gone, other], None))
    cloud = Cloud()
    run_test(daemon, cloud)
    assert cloud.asked == ["i-2"]


def test_an_interrupt_cancels_the_job() -> None:
    daemon = Daemon(*ALL_FRAMES)
    with pytest.raises(KeyboardInterrupt):
        run_test(daemon, Cloud(KeyboardInterrupt()))
    assert daemon.cancelled
