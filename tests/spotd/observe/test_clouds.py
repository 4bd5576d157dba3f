"""Listings are shared and never half; notices are recorded as they come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pytest

from providers.base import (
    Instance,
    Notice,
    NoticeKind,
    ThrottledError,
    UnknownOutcome,
)
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.observe.clouds import InstanceSurvey, NoticeQueue
from spotd.store.errors import LostLeaseError, StoreUnavailableError
from tests.fixtures.waiting import LIMIT_S
from tests.spotd.fake_world import Stage, ToyCloud


class SlowCloud(ToyCloud):
    """Listings wait for the test: each `go` lets one through."""

    def __init__(self, stage: Stage) -> None:
        super().__init__("aws", stage.clock, stage.commits, lambda: None)
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.listed = 0

    def list(self) -> Sequence[Instance]:
        self.listed += 1
        self.begun.release()
        assert self.go.acquire(timeout=LIMIT_S)
        return super().list()


class Asking:
    """Askers on threads of their own."""

    def __init__(self, stage: Stage, patience_s: float = LIMIT_S) -> None:
        self.cloud = SlowCloud(stage)
        self.survey = InstanceSurvey(stage.store, {"aws": self.cloud}, stage.clock, patience_s)
        self.threads = ThreadPoolExecutor(16)

    def ask(self) -> Future[Callable[[], None]]:
        return self.threads.submit(self.survey.survey, "aws")

    def ask_late(self, count: int) -> list[Future[Callable[[], None]]]:
        """Askers that are known to wait: the lane has as many sleepers."""
        lane = self.survey._lanes["aws"]._changed
        late = [self.ask() for _ in range(count)]
        deadline = threading.Event()
        for _ in range(int(LIMIT_S / 0.01)):
            with lane:
                if len(lane._waiters) >= count:  # type: ignore[attr-defined]
                    return late
            deadline.wait(0.01)
        raise AssertionError("they do not wait")


@pytest.fixture
def asking(stage: Stage) -> Asking:
    return Asking(stage)


# --- who does not answer


def test_a_cloud_that_fails_is_silent_since_it_was_first_asked_in_vain(stage: Stage) -> None:
    survey, cloud = InstanceSurvey(stage.store, stage.clouds, stage.clock), stage.clouds["aws"]
    survey.survey("aws")()
    stage.clock.sleep(100)
    assert survey.silent(30) == {}, "nobody asked"
    cloud.fail("list", UnknownOutcome("connection timed out"), UnknownOutcome("connection refused"))
    for _ in range(2):
        with pytest.raises(UnknownOutcome):
            survey.survey("aws")
        assert survey.silent(30) == {}, "once is no silence"
        stage.clock.sleep(20)
    assert survey.silent(30) == {"aws": "no answer for 40 s: connection refused"}
    survey.survey("aws")()
    stage.clock.sleep(100)
    assert survey.silent(30) == {}


def test_a_cloud_that_hangs_is_silent_too(asking: Asking, stage: Stage) -> None:
    asked = asking.ask()
    assert asking.cloud.begun.acquire(timeout=LIMIT_S)
    stage.clock.sleep(31)
    assert asking.survey.silent(30) == {"aws": "no answer for 31 s"}
    asking.cloud.go.release()
    asked.result(LIMIT_S)
    assert asking.survey.silent(30) == {}


def test_a_cloud_that_was_away_answers_since_its_first_answer(stage: Stage) -> None:
    survey, cloud = InstanceSurvey(stage.store, stage.clouds, stage.clock), stage.clouds["aws"]
    for away_s, back in ((30, False), (31, True)):
        cloud.fail("list", UnknownOutcome("no route to host"))
        with pytest.raises(UnknownOutcome):
            survey.survey("aws")
        stage.clock.sleep(away_s)
        assert not any(survey.answering_since().values()), "it does not, yet"
        back_us = stage.clock.now_us() if back else 0
        for _ in range(2):
            survey.survey("aws")()
            assert survey.answering_since() == {"aws": back_us, "gcp": 0}
            stage.clock.sleep(60)  # nobody asks


# --- who shares what


def test_who_asks_while_a_listing_is_on_its_way_shares_the_next_one(asking: Asking) -> None:
    first = asking.ask()
    assert asking.cloud.begun.acquire(timeout=LIMIT_S)
    late = asking.ask_late(5)
    asking.cloud.go.release()
    mine = first.result(LIMIT_S)  # without waiting for the others' listing
    assert asking.cloud.begun.acquire(timeout=LIMIT_S)
    assert not any(asker.done() for asker in late)
    asking.cloud.go.release()
    shared = {asker.result(LIMIT_S) for asker in late}
    assert len(shared) == 1
    assert mine not in shared, "what it says is older than the question"
    assert asking.cloud.listed == 2


def test_a_stream_of_askers_keeps_nobody_waiting_for_the_others(asking: Asking) -> None:
    cloud = asking.cloud
    asked = [asking.ask()]
    for _ in range(40):
        assert cloud.begun.acquire(timeout=LIMIT_S)
        asked += asking.ask_late(1)
        cloud.go.release()
        assert asked[-2].result(LIMIT_S)
    cloud.go.release()
    assert asked[-1].result(LIMIT_S)
    assert cloud.listed == 41


@pytest.mark.parametrize("error", [ThrottledError("slow down"), ZeroDivisionError("a bug")])
def test_an_error_reaches_every_asker_and_blocks_nobody_after(
    asking: Asking, error: Exception
) -> None:
    first = asking.ask()
    assert asking.cloud.begun.acquire(timeout=LIMIT_S)
    late = asking.ask_late(3)
    asking.cloud.go.release()
    assert first.result(LIMIT_S)
    asking.cloud.fail("list", error)
    asking.cloud.go.release()
    wait(late, LIMIT_S)
    assert [asker.exception() for asker in late] == [error] * 3
    asking.cloud.go.release()
    assert asking.ask().result(LIMIT_S), "the next one is asked anew"


def test_who_waits_too_long_is_told_so_as_a_clouds_error(stage: Stage) -> None:
    asking = Asking(stage, patience_s=0.05)
    first = asking.ask()
    assert asking.cloud.begun.acquire(timeout=LIMIT_S)
    with pytest.raises(UnknownOutcome, match=r"longer than 0\.05 s"):
        asking.survey.survey("aws")
    asking.cloud.go.release(2)
    assert first.result(LIMIT_S)
    assert asking.ask().result(LIMIT_S)


def test_one_cloud_that_hangs_keeps_no_other_waiting(stage: Stage) -> None:
    slow = SlowCloud(stage)
    survey = InstanceSurvey(stage.store, {"aws": slow, "gcp": stage.clouds["gcp"]}, stage.clock)
    with ThreadPoolExecutor(1) as threads:
        hanging = threads.submit(survey.survey, "aws")
        assert slow.begun.acquire(timeout=LIMIT_S)
        survey.survey("gcp")()
        slow.go.release()
        hanging.result(LIMIT_S)


# --- what is recorded


def trained(stage: Stage) -> str:
    """A job that trains on aws; the id of its instance."""
    stage.goal = None
    stage.submit()
    stage.run(lambda s: s.nodes("j1", NodeState.RUNNING))
    return stage.nodes("j1")[0].instance_id


def test_a_listing_that_fails_is_nothing(stage: Stage) -> None:
    trained(stage)
    before = stage.nodes("j1")
    stage.clock.sleep(60)
    stage.clouds["aws"].fail("list", UnknownOutcome("page 2 of 3 did not come"), answer=True)
    with pytest.raises(UnknownOutcome):
        stage.survey.survey("aws")
    assert stage.nodes("j1") == before


def test_a_listing_is_recorded_once_whoever_calls_it(stage: Stage) -> None:
    trained(stage)
    stage.clock.sleep(60)
    record = stage.survey.survey("aws")
    record()
    (seen,) = stage.nodes("j1")
    assert seen.machine.surveyed_at_us == stage.clock.now_us()
    stage.clock.sleep(60)
    record()
    assert stage.nodes("j1") == [seen]


def test_a_store_that_was_away_is_asked_again_by_the_next_caller(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = trained(stage)
    stage.clouds["aws"].end(instance)

    def away(*_: object) -> None:
        raise StoreUnavailableError("away")

    record = stage.survey.survey("aws")
    with monkeypatch.context() as patch:
        patch.setattr(stage.store.instances, "record_listing", away)
        with pytest.raises(StoreUnavailableError):
            record()
    record()
    assert stage.nodes("j1")[0].machine.gone_at_us


# --- notices


def test_the_clouds_own_queue_warns_too(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = trained(stage)
    warning = Notice("n1", NoticeKind.PREEMPT, stage.clock.now_us() + 120_000_000, "q", instance)
    cloud = stage.clouds["aws"]
    monkeypatch.setattr(cloud, "notices", lambda: [warning])
    queue(stage).hear(stage.duty("notices:aws"), stage.clouds["aws"])
    stage.turn()
    assert stage.nodes("j1")[0].state is NodeState.DRAINING


def test_a_queue_that_does_not_answer_is_no_warning(stage: Stage) -> None:
    trained(stage)
    stage.clouds["aws"].fail("notices", ThrottledError("slow down"))
    queue(stage).hear(stage.duty("notices:aws"), stage.clouds["aws"])
    stage.turn()
    assert stage.nodes("j1")[0].state is NodeState.RUNNING


def test_a_warning_that_the_store_did_not_take_is_told_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue tells each once; also when it does not answer the next time."""
    instance = trained(stage)
    warning = Notice("n1", NoticeKind.PREEMPT, stage.clock.now_us() + 120_000_000, "q", instance)
    cloud, asking = stage.clouds["aws"], queue(stage)
    monkeypatch.setattr(cloud, "notices", iter([[warning]]).__next__)
    with monkeypatch.context() as patch:
        patch.setattr(type(stage.store.instances), "record_notices", away)
        with pytest.raises(StoreUnavailableError):
            asking.hear(stage.duty("notices:aws"), stage.clouds["aws"])
    monkeypatch.undo()
    cloud.fail("notices", ThrottledError("slow down"))
    asking.hear(stage.duty("notices:aws"), stage.clouds["aws"])
    assert [told.notice_id for told in stage.nodes("j1")[0].notices] == ["n1"]


def test_a_warning_told_to_one_who_is_overtaken_meanwhile_is_recorded(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue tells its next holder nothing of it."""
    instance = trained(stage)
    warning = Notice("n1", NoticeKind.PREEMPT, stage.clock.now_us() + 120_000_000, "q", instance)
    cloud, ours = stage.clouds["aws"], stage.duty("notices:aws")

    def tell() -> list[Notice]:
        stage.clock.sleep(21)  # our lease ends
        assert stage.store.leases.take("notices:aws", "other", stage.clock.now_us, 20 * S)
        return [warning]

    monkeypatch.setattr(cloud, "notices", tell)
    asking = queue(stage)
    asking.hear(ours, cloud)
    assert [told.notice_id for told in stage.nodes("j1")[0].notices] == ["n1"]
    monkeypatch.setattr(cloud, "notices", lambda: pytest.fail("the duty is another's"))
    with pytest.raises(LostLeaseError):
        asking.hear(ours, cloud)


def queue(stage: Stage) -> NoticeQueue:
    return NoticeQueue(stage.store, "aws", stage.clock)


def away(*_: object) -> None:
    raise StoreUnavailableError("away")
