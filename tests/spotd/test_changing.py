"""The daemon's parts go on with another configuration: what stays is kept, what goes is let go."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from providers.base import Notice, NoticeKind
from spotd.act.alerts import Delivery
from spotd.alert_sinks.base import Alert, AlertSinkError
from spotd.base.clock import SystemClock
from spotd.config.provider_registry import Clouds
from spotd.config.schedule import Schedule
from spotd.daemon.periodic import PeriodicTasks
from spotd.daemon.pool import CLOUD_CALLS
from spotd.domain.events import Event, Severity
from spotd.domain.node import EffectKind
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.observe.clouds import InstanceSurvey
from tests.fixtures.waiting import until
from tests.spotd.daemon.test_loop import running
from tests.spotd.daemon.test_periodic import LIMIT_S, NEVER
from tests.spotd.daemon.test_pool import Calls, effect
from tests.spotd.fake_world import Stage, ToyCloud
from tests.spotd.store import build


class Office:
    """Duties over a stage's clouds, which may be others later; `delivered` counts alerts' turns."""

    def __init__(self, stage: Stage, schedule: Schedule) -> None:
        self.stage = stage
        self.clouds = Clouds(stage.clouds)
        self.survey = InstanceSurvey(stage.store, self.clouds, SystemClock())
        self.delivered = 0
        self.duties = PeriodicTasks(
            stage.store,
            self.clouds,
            self.survey,
            self._deliver,
            SystemClock(),
            "me",
            stage.timing,
            schedule,
        )

    def _deliver(self, _store: object) -> None:
        self.delivered += 1

    def change(self, clouds: dict[str, ToyCloud], schedule: Schedule) -> None:
        self.survey.change(clouds)
        self.clouds.change(clouds)
        self.duties.change(self.stage.timing, schedule)

    def held(self, duty: str) -> bool:
        """Whether nobody else can have it."""
        taken = self.stage.store.leases.take(duty, "another", SystemClock().now_us, 3600 * S)
        return taken is None


def another(stage: Stage, name: str) -> ToyCloud:
    return ToyCloud(name, stage.clock, stage.commits, lambda: None)


def test_duties_have_another_rhythm_and_other_clouds(stage: Stage) -> None:
    office = Office(stage, NEVER)
    office.duties.start()
    try:
        until(lambda: stage.clouds["gcp"].calls["offers"] == 1)
        stays = {"aws": stage.clouds["aws"]}
        often = replace(NEVER, alerts_s=0.05, survey_s=0.05)
        office.change(stays, often)
        until(lambda: office.delivered >= 3)
        until(lambda: stays["aws"].calls["list"] >= 3)
        assert stage.clouds["gcp"].calls["list"] == 0
        assert not office.held("offers:gcp"), "another replica may have what is not ours any more"
        assert office.held("offers:aws")
        assert stays["aws"].calls["offers"] == 1, "its schedule was not begun anew"

        fresh = another(stage, "more")
        office.change({**stays, "more": fresh}, often)
        until(lambda: fresh.calls["offers"] == 1)
        until(lambda: fresh.calls["list"] >= 2)
        assert office.held("offers:more")
        follower = another(stage, "more")  # of other settings
        office.change({**stays, "more": follower}, often)
        until(lambda: follower.calls["offers"] == 1)
        until(lambda: follower.calls["list"] >= 2)
    finally:
        assert office.duties.stop(LIMIT_S)


def test_a_notice_that_was_heard_and_not_recorded_outlives_the_change(stage: Stage) -> None:
    """The cloud's queue tells each once."""
    office = Office(stage, NEVER)
    office.duties.start()
    try:
        notice = Notice("n1", NoticeKind.PREEMPT, None, "i-1")
        office.duties._queues["aws"]._untold.append(notice)
        office.change({"aws": stage.clouds["aws"]}, replace(NEVER, notices_s=0.05))
        until(lambda: not office.duties._queues["aws"]._untold)
    finally:
        assert office.duties.stop(LIMIT_S)


def test_what_is_known_of_a_cloud_that_stays_is_kept(stage: Stage) -> None:
    survey = InstanceSurvey(stage.store, stage.clouds, stage.clock)
    lanes = dict(survey._lanes)
    survey.change({"aws": stage.clouds["aws"], "gcp": another(stage, "gcp")})
    assert survey._lanes["aws"] is lanes["aws"]
    assert survey._lanes["gcp"] is not lanes["gcp"]
    survey.change({"aws": stage.clouds["aws"]})
    assert list(survey._lanes) == ["aws"]


@pytest.fixture
def calls() -> Calls:
    return Calls()


def test_a_cloud_that_comes_has_a_lane_of_its_own(calls: Calls) -> None:
    """And what one that goes was given is still made: it may have been made already."""
    for number in range(CLOUD_CALLS + 1):
        calls.pool.submit(effect(EffectKind.LAUNCH, number=number))
    calls.until("aws", EffectKind.LAUNCH, CLOUD_CALLS)
    calls.pool.change(["gcp", "azure"])
    for number in range(CLOUD_CALLS):
        calls.pool.submit(effect(EffectKind.LAUNCH, "azure-1a", number))
    calls.until("azure", EffectKind.LAUNCH, CLOUD_CALLS)
    calls.let_go.set()
    calls.until("aws", EffectKind.LAUNCH, CLOUD_CALLS + 1)
    assert calls.pool.close(LIMIT_S)


def test_the_loop_looks_at_every_job_with_a_machine_and_tells_of_lost_clouds(stage: Stage) -> None:
    stage.submit()
    stage.run(lambda s: s.nodes("j1", NodeState.RUNNING))
    clouds = Clouds(stage.clouds)
    stage.world = replace(stage.world, providers=clouds)
    with running(stage) as watched:
        watched.until(lambda: watched.rounds >= 2)
        assert not stranded(stage)
        clouds.change({"gcp": stage.clouds["gcp"]})
        watched.loop.change(stage.timing)
        until(lambda: stranded(stage))


def stranded(stage: Stage) -> list[str]:
    return [row.event.text for row in stage.store.events.rows(None) if row.event.kind == "stranded"]


class Toy:
    """A route that takes messages when it is let."""

    min_severity, paced = Severity.INFO, False

    def __init__(self, send: Callable[[], None]) -> None:
        self.taken: list[str] = []
        self._send = send

    def send(self, alerts: list[Alert]) -> None:
        self._send()
        self.taken += [alert.event.text for alert in alerts]


def refuse() -> None:
    raise AlertSinkError("gone", gone=True)


def test_alerts_under_way_are_told_once_and_a_route_may_be_mended(stage: Stage) -> None:
    let_go = threading.Event()
    slow, mended = Toy(lambda: assert_soon(let_go)), Toy(lambda: None)
    delivery = Delivery({"default": slow}, SystemClock())
    store = stage.store
    happen(stage, "first")
    with_duty(stage, delivery)
    delivery.change({"default": mended})
    happen(stage, "second")
    with_duty(stage, delivery)
    assert mended.taken == [], "the message that is under way comes first"
    let_go.set()
    until(lambda: (with_duty(stage, delivery), mended.taken)[1])
    assert (slow.taken, mended.taken) == (["first"], ["second"])

    delivery.change({"default": Toy(refuse)})
    happen(stage, "third")
    with_duty(stage, delivery)
    delivery.change({"default": mended})
    until(lambda: (with_duty(stage, delivery), "third" in mended.taken)[1])
    assert store.alerts.due(1 << 60, 10) == []


def assert_soon(event: threading.Event) -> None:
    assert event.wait(LIMIT_S)


def happen(stage: Stage, text: str) -> None:
    event = Event("lost", text, severity=Severity.WARNING, alert=True, key=text)
    stage.store.events.add("", event, time.time_ns() // 1000)


def with_duty(stage: Stage, delivery: Delivery) -> None:
    """One turn of its holder."""
    epoch = stage.store.leases.take("alerts", "me", SystemClock().now_us, 3600 * S)
    assert epoch is not None
    delivery.deliver(stage.store.fenced("alerts", epoch))


def test_clouds_are_one_set_for_whoever_looks_at_them() -> None:
    clouds = Clouds({"aws": build, "gcp": build})  # type: ignore[dict-item]
    looking = iter(clouds.items())
    next(looking)
    clouds.change({})
    assert next(looking)[0] == "gcp"
    assert not clouds
    assert "gcp" not in clouds
