"""The periodic duties, on the real scheduler: leases, clouds that are down, and a clean end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta, tzinfo
from typing import Any

import apscheduler.executors.base
import apscheduler.schedulers.base
import apscheduler.triggers.interval
import pytest

import spotd.daemon.periodic
from providers.base import (
    Leftover,
    LeftoverKind,
    Notice,
    NoticeKind,
    Provider,
    UnknownOutcome,
)
from providers.error_codes import CodeTable
from spotd.base.clock import SystemClock
from spotd.config.schedule import Schedule
from spotd.daemon.periodic import PeriodicTasks
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.observe.clouds import InstanceSurvey
from spotd.store.errors import LostLeaseError, StoreUnavailableError
from spotd.store.interface import Store
from tests.fixtures.waiting import LIMIT_S, until
from tests.spotd.fake_world import Stage, ToyCloud
from tests.spotd.store import build

NEVER = Schedule(*[3600.0] * 7, renew_s=0.05)


class Hanging(ToyCloud):
    """Accepts calls and answers none until let go."""

    def __init__(self, stage: Stage) -> None:
        super().__init__("slow", stage.clock, stage.commits, lambda: None)
        self.let_go = threading.Event()

    def _call(self, verb: str) -> None:
        super()._call(verb)
        assert self.let_go.wait(2 * LIMIT_S)


class Office:
    """Duties over a stage, with real time. `delivered` is when alerts were sent."""

    def __init__(
        self, stage: Stage, schedule: Schedule, holder: str = "me", *more: ToyCloud
    ) -> None:
        self.stage = stage
        self.clock = SystemClock()
        self.delivered: list[float] = []
        clouds: dict[str, Provider] = {**stage.clouds, **{cloud.name: cloud for cloud in more}}
        self.survey = InstanceSurvey(stage.store, clouds, self.clock)
        self.duties = PeriodicTasks(
            stage.store,
            clouds,
            self.survey,
            lambda _store: self.delivered.append(time.monotonic()),
            self.clock,
            holder,
            stage.timing,
            schedule,
        )


@contextmanager
def at_work(office: Office) -> Iterator[Office]:
    office.duties.start()
    try:
        yield office
    finally:
        assert office.duties.stop(LIMIT_S)


def calls(stage: Stage, verb: str) -> int:
    return sum(cloud.calls[verb] for cloud in stage.clouds.values())


def test_prices_are_known_before_the_first_decision(stage: Stage) -> None:
    stage.clouds["aws"].on_sale = [build.offer("aws-1a", 3)]
    with at_work(Office(stage, NEVER)):
        offers = stage.store.market.load(stage.clock.now_us()).offers
        assert 3_000_000 in [offer.price_microusd_per_h for offer in offers]


def test_every_duty_is_done_again_and_again(stage: Stage) -> None:
    often = replace(NEVER, survey_s=0.1, offers_s=0.1, notices_s=0.1, alerts_s=0.1, prune_s=0.1)
    stage.goal = None
    stage.submit()
    stage.run(lambda s: s.nodes("j1", NodeState.RUNNING))
    with at_work(Office(stage, replace(often, expiry_s=0.1))) as office:
        until(lambda: len(office.delivered) >= 2)
        until(lambda: calls(stage, "renew"))
        for verb in ("list", "offers", "notices"):
            until(lambda verb=verb: calls(stage, verb) >= 4)


def test_what_an_adapter_came_upon_is_told_without_a_duty(stage: Stage) -> None:
    """Another daemon may have all duties: it does not know what this one was answered."""
    codes = CodeTable("EC2", ())
    stage.clouds["aws"].warnings = codes.warnings  # type: ignore[attr-defined]
    codes.error("New", "words")
    with (
        at_work(Office(stage, NEVER, "other")),
        at_work(Office(stage, replace(NEVER, notices_s=0.1), "me")),
    ):
        until(lambda: any(row.event.kind == "remark" for row in stage.store.events.rows(None)))


def test_what_is_due_is_renewed_at_the_start(stage: Stage) -> None:
    """Not after its interval alone: a daemon that dies more often would never renew anything."""
    stage.goal = None
    stage.submit()
    stage.run(lambda s: s.nodes("j1", NodeState.RUNNING))
    with at_work(Office(stage, NEVER)):
        until(lambda: calls(stage, "renew"))


def test_what_is_held_is_known_soon_after_the_start_and_looked_at_again(stage: Stage) -> None:
    marks = {"spotd-deployment": "d0", "spotd-job": "jold"}
    disk = Leftover("vol-1", LeftoverKind.DISK, marks, "aws-1")
    stage.clouds["aws"].left = [disk]
    with at_work(Office(stage, NEVER)) as office:
        until(office.survey.held_leftovers)
        assert [held.leftover for held in office.survey.held_leftovers()] == [disk]
    with at_work(Office(stage, replace(NEVER, leftovers_s=0.1))):
        until(lambda: calls(stage, "leftovers") >= 6)


def test_or_as_soon_as_the_lease_of_one_that_died_has_run_out(stage: Stage) -> None:
    stage.goal = None
    stage.submit()
    stage.run(lambda s: s.nodes("j1", NodeState.RUNNING))
    stage.store.leases.take("expiry:aws", "dead", SystemClock().now_us, 2 * S)
    with at_work(Office(stage, NEVER)):
        until(lambda: calls(stage, "renew"))


def test_one_replica_at_a_time_and_the_next_at_once_when_it_stops(stage: Stage) -> None:
    often = replace(NEVER, alerts_s=0.05)
    first, second = Office(stage, often, "one"), Office(stage, often, "two")
    with at_work(second):
        with at_work(first):
            until(lambda: len(first.delivered) + len(second.delivered) >= 5)
            assert not (first.delivered and second.delivered)
            holder, other = (first, second) if first.delivered else (second, first)
            if holder is second:
                return
        until(lambda: other.delivered)
    assert min(other.delivered) > max(holder.delivered)


def test_what_is_added_writes_for_as_long_as_it_is_held(stage: Stage) -> None:
    lent: list[Store] = []
    office = Office(stage, NEVER)
    office.duties.add(0.05, "more", lent.append)
    with at_work(office):
        until(lambda: lent)
        lent[0].users.record_dismissed("j1-g1-0", "ada", 1)
    assert stage.store.leases.take("more", "another", SystemClock().now_us, 3600 * S)
    with pytest.raises(LostLeaseError):
        lent[0].users.record_dismissed("j1-g1-0", "ada", 1)


def test_a_replica_that_died_is_succeeded_when_its_lease_has_run_out(stage: Stage) -> None:
    now_us = SystemClock().now_us()
    stage.store.leases.take("alerts", "the dead", lambda: now_us, S)
    with at_work(Office(stage, replace(NEVER, alerts_s=0.1))) as office:
        until(lambda: office.delivered)
    assert SystemClock().now_us() - now_us >= S


def test_a_cloud_that_is_down_stops_no_other_duty(stage: Stage) -> None:
    stage.clouds["aws"].fail("list", *[UnknownOutcome("down")] * 1000)
    stage.clouds["aws"].fail("offers", *[UnknownOutcome("down")] * 1000)
    stage.clouds["aws"].fail("notices", ZeroDivisionError("a bug"))
    often = replace(NEVER, survey_s=0.05, offers_s=0.05, notices_s=0.05, alerts_s=0.05)
    with at_work(Office(stage, often)) as office:
        until(lambda: len(office.delivered) >= 3)
        until(lambda: stage.clouds["gcp"].calls["list"] >= 3)
        until(lambda: stage.clouds["aws"].calls["list"] >= 3)
        until(lambda: stage.clouds["aws"].calls["notices"] >= 3)


def test_clouds_that_hang_hold_up_neither_the_start_nor_anybody_else(stage: Stage) -> None:
    hanging = [Hanging(stage) for _ in range(3)]
    for number, cloud in enumerate(hanging):
        cloud.name = f"slow{number}"
    often = replace(NEVER, survey_s=0.05, offers_s=0.05, notices_s=0.05, alerts_s=0.05)
    started = time.monotonic()
    with at_work(Office(stage, often, "me", *hanging)) as office:
        assert time.monotonic() - started < LIMIT_S
        until(lambda: len(office.delivered) >= 3)
        until(lambda: stage.clouds["gcp"].calls["list"] >= 3)
        assert not office.duties.stop(0.1), "it says that something still runs"
        for cloud in hanging:
            cloud.let_go.set()


def test_a_store_that_is_away_is_waited_for(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> None:
        tried.append(1)
        raise StoreUnavailableError("away")

    tried: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(stage.store.leases, "take", away)
        with at_work(Office(stage, replace(NEVER, alerts_s=0.05))) as office:
            until(lambda: len(tried) >= 3)
            assert office.delivered == []
            patch.undo()
            until(lambda: office.delivered)


def test_every_renewal_is_told(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> None:
        raise StoreUnavailableError("the disk is full")

    told: list[str] = []
    office = Office(stage, replace(NEVER, renew_s=0.05))
    office.duties.tell_renewals(told.append)
    with at_work(office):
        until(lambda: told[:2] == ["", ""])
        with monkeypatch.context() as patch:
            patch.setattr(stage.store.leases, "take_many", away)
            until(lambda: told[-2:] == ["the disk is full"] * 2)
        until(lambda: told[-1] == "")


def test_a_lease_that_is_locked_keeps_no_other_from_its_renewal(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long write of that duty is under way."""
    take, tried = stage.store.leases.take, []

    def locked(duty: str, *rest: Any) -> object:
        tried.append(duty)
        if duty == "offers:aws":
            raise StoreUnavailableError("another process holds it locked")
        return take(duty, *rest)

    monkeypatch.setattr(stage.store.leases, "take", locked)
    with at_work(Office(stage, replace(NEVER, alerts_s=0.05))) as office:
        until(lambda: office.delivered)
        assert tried.index("offers:aws") < tried.index("alerts")


class WallClock(datetime):
    """What APScheduler reads, and the duties with it; set back by a number of seconds."""

    back_s = 0.0

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return datetime.now(tz) - timedelta(seconds=cls.back_s)


@pytest.mark.parametrize("steps", [1, 1000], ids=["at-once", "little-by-little"])
def test_a_clock_that_is_set_back_stops_no_duty(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    schedulers, executors = apscheduler.schedulers.base, apscheduler.executors.base
    for module in (schedulers, executors, apscheduler.triggers.interval, spotd.daemon.periodic):
        monkeypatch.setattr(module, "datetime", WallClock)
    monkeypatch.setattr(WallClock, "back_s", 0.0)
    often = replace(NEVER, alerts_s=0.1, survey_s=0.1, silence_s=0.1)
    with at_work(Office(stage, often)) as office:
        until(lambda: office.delivered)
        for _ in range(steps):
            WallClock.back_s += 600.0 / steps
            office.duties.notice_clock()
        seen, listed = len(office.delivered), calls(stage, "list")
        until(lambda: len(office.delivered) >= seen + 5)
        until(lambda: calls(stage, "list") >= listed + 5)


@pytest.mark.parametrize("overtaken", [False, True])
def test_a_warning_outlives_a_store_that_was_away(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, overtaken: bool
) -> None:
    """The cloud's queue tells it once, and whoever has the duty by then is told nothing."""
    stage.goal = None
    stage.submit()
    stage.run(lambda s: s.nodes("j1", NodeState.RUNNING))
    (node,) = stage.nodes("j1")
    cloud = stage.clouds[node.offer.provider]
    warning = Notice("n1", NoticeKind.PREEMPT, None, "q", node.instance_id)
    instances = type(stage.store.instances)
    queue, record, tries = [[warning]], instances.record_notices, [1, 2]

    def away_twice(*arguments: Any) -> None:
        if tries:
            tries.pop()
            if overtaken:
                duty, later_us = f"notices:{cloud.name}", SystemClock().now_us() + 3600 * S
                stage.store.leases.take(duty, "other", lambda: later_us, 3600 * S)
            raise StoreUnavailableError("away")
        record(*arguments)

    monkeypatch.setattr(cloud, "notices", lambda: queue.pop() if queue else [])
    monkeypatch.setattr(instances, "record_notices", away_twice)
    with at_work(Office(stage, replace(NEVER, notices_s=0.05))):
        until(lambda: stage.nodes("j1")[0].notices)


def test_the_silent_are_looked_at(stage: Stage) -> None:
    """Nothing is observed when a node says nothing: a duty makes its job due."""
    stage.goal = None
    stage.submit()
    stage.run(lambda s: s.nodes("j1", NodeState.RUNNING))
    before = stage.job().wakeup.notes
    with at_work(Office(stage, replace(NEVER, silence_s=0.05))):
        # By the real clock the stage's node was last heard a long time ago.
        until(lambda: stage.job().wakeup.notes > before)


def test_the_slow_are_looked_at(stage: Stage) -> None:
    office = Office(stage, NEVER)
    stage.goal = None
    stage.submit()
    stage.run(lambda s: s.nodes("j1", NodeState.RUNNING))
    office.duties._clock = stage.clock
    end_us = stage.clock.now_us() + 10 * S
    stage.run(lambda s: s.clock.now_us() > end_us)
    before = stage.job().wakeup.notes
    office.duties._note_slow(stage.store)
    assert stage.job().wakeup.notes == before, "it trains as fast as ever"
    stage.clock.sleep(130.0)  # without a report
    office.duties._note_slow(stage.store)
    assert stage.job().wakeup.notes == before + 1


def test_old_history_is_pruned(stage: Stage) -> None:
    stage.submit()
    stage.run(lambda s: s.over("j1"))
    assert stage.store.events.rows("j1")
    office = Office(stage, replace(NEVER, keep_s=60.0))
    office.duties._clock = stage.clock
    stage.clock.sleep(61.0)
    office.duties._prune(stage.store)
    assert stage.store.events.rows("j1") == []
