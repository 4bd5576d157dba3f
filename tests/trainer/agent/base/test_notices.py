"""Notices from the metadata service to the journal, and the agent's own response to them."""

from __future__ import annotations

import shlex
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from providers.aws.notice import Watcher as AwsWatcher
from providers.azure.notice import Watcher as AzureWatcher
from providers.base import MetadataError, Notice, NoticeKind
from providers.gcp.notice import Watcher as GcpWatcher
from spotd import wire
from tests.fixtures.metadata import serve_metadata
from tests.fixtures.waiting import LIMIT_S, until, wait_until
from tests.trainer.agent.node import Node
from trainer.agent.base.notices import (
    FAILURES_BEFORE_OUTAGE,
    PAUSE_AFTER_FAILURE_S,
    NoticeTracker,
    poll_notices,
)

WATCHERS: dict[str, type[AwsWatcher | AzureWatcher | GcpWatcher]] = {
    "aws": AwsWatcher,
    "azure": AzureWatcher,
    "gcp": GcpWatcher,
}
WORKER = f"{shlex.quote(sys.executable)} {Path(__file__).parents[1] / 'worker.py'}"


def in_us(seconds: float) -> int:
    return int((time.time() + seconds) * 1e6)


class Heard:
    """Records what a tracker reports."""

    def __init__(self) -> None:
        self.told: list[tuple[str, object]] = []

    def on_notice(self, notice: Notice) -> None:
        self.told.append(("notice", notice.notice_id))

    def on_deadline(self, notice: Notice) -> None:
        self.told.append(("deadline", notice.deadline_us))

    def on_withdrawn(self, notice_id: str) -> None:
        self.told.append(("withdrawn", notice_id))

    def on_metadata(self, up: bool, error: str) -> None:
        self.told.append(("metadata", up))


PREEMPT = Notice("p", NoticeKind.PREEMPT, 5)


class Ended(threading.Event):
    """Set in the first pause, which it records."""

    def __init__(self) -> None:
        super().__init__()
        self.pause_s: float | None = None

    def wait(self, timeout: float | None = None) -> bool:
        self.pause_s = timeout
        self.set()
        return True


class Slow:
    """A metadata service whose response takes as long as the poll interval."""

    interval_s = 1.0

    def __init__(self, *, fails: bool) -> None:
        self._fails = fails

    def poll(self) -> Sequence[Notice]:
        time.sleep(max(self.interval_s, PAUSE_AFTER_FAILURE_S))
        if self._fails:
            raise MetadataError("no answer")
        return []

    def acknowledge(self, notice: Notice) -> None: ...


@pytest.mark.parametrize("fails", [False, True])
def test_after_a_poll_that_took_long_there_is_no_pause(fails: bool) -> None:
    """Otherwise a notice of half a minute would be received later by that time."""
    ended = Ended()
    poll_notices(Slow(fails=fails), NoticeTracker(Heard()), ended)
    assert ended.pause_s == 0.0


@pytest.mark.req("PRE-11")
def test_a_notice_is_news_once_and_withdrawn_once() -> None:
    heard = Heard()
    tracker = NoticeTracker(heard)
    for notices in ([], [PREEMPT], [PREEMPT], [replace(PREEMPT, deadline_us=3)], [], []):
        tracker.update(notices)
    assert heard.told == [("notice", "p"), ("deadline", 3), ("withdrawn", "p")]


def test_an_outage_is_told_once_and_changes_nothing() -> None:
    heard = Heard()
    tracker = NoticeTracker(heard, [PREEMPT])
    for _ in range(FAILURES_BEFORE_OUTAGE * 3):
        tracker.record_failure(str(MetadataError("no answer")))
    assert heard.told == [("metadata", False)]
    tracker.update([PREEMPT])
    assert heard.told == [("metadata", False), ("metadata", True)]


def test_a_single_lost_answer_is_no_outage() -> None:
    heard = Heard()
    tracker = NoticeTracker(heard)
    for _ in range(5):
        for _ in range(FAILURES_BEFORE_OUTAGE - 1):
            tracker.record_failure("lost")
        tracker.update([])
    assert heard.told == []


@pytest.mark.req("PRE-01", "PRE-02", "PRE-03")
@pytest.mark.parametrize("cloud", sorted(WATCHERS))
def test_a_notice_is_in_the_journal_soon(node: Node, cloud: str) -> None:
    """One poll a second; GCP's request blocks until the key changes."""
    assert WATCHERS[cloud].interval_s <= 1.0
    with serve_metadata(cloud) as service:
        node = replace(node, watcher=cloud, metadata_base=service.url)
        with node:
            node.run()
            time.sleep(0.3)  # the first poll is over, and GCP's waits
            before_s = time.time()
            service.publish("preempt", in_us(3600))
            heard = node.wait_for(wire.NOTICE)
    assert heard.data["kind"] == "preempt"
    # AWS and Azure write whole seconds. GCP says no time: there are 30 s, or fewer since it was.
    most_s = 30 if cloud == "gcp" else 3600
    assert most_s - 1 - (time.time() - before_s) <= heard.data["remaining_s"] <= most_s


@pytest.mark.req("PRE-03")
def test_an_outage_is_journalled_once_and_training_goes_on(node: Node) -> None:
    with serve_metadata("aws") as service:
        node = replace(node, watcher="aws", metadata_base=service.url)
        with node:
            node.run()
            node.start(run="sleep 1000")
            node.wait_for(wire.STARTED)
            service.fault("error_503")
            assert node.wait_for(wire.METADATA).data["up"] is False
            time.sleep(1.5)  # more failures, which must not be told
            service.fault("error_503", 0.0)
            wait_until("the end of the outage", lambda: len(node.entries(wire.METADATA)) == 2)
            assert node.entries(wire.METADATA)[1].data["up"] is True
            assert node.is_program_alive()
            assert wire.NOTICE not in node.kinds()


@pytest.mark.req("PRE-03")
def test_a_withdrawn_notice_leaves_training_alone(node: Node) -> None:
    with serve_metadata("azure") as service:
        node = replace(node, watcher="azure", metadata_base=service.url)
        with node:
            node.run()
            node.start(run=WORKER, engine="spotd")
            node.wait_for(wire.PROGRESS)
            # The latest safe moment comes 13.5 s before the deadline: some 3 s from now.
            service.publish("preempt", in_us(17.5))
            node.wait_for(wire.NOTICE)
            service.withdraw()
            node.wait_for(wire.NOTICE_WITHDRAWN)
            time.sleep(4.0)
            assert node.is_program_alive()
            assert "stop" not in node.log()
            assert wire.RELEASED not in node.kinds()


@pytest.mark.req("PRE-05", "PRE-09")
def test_training_goes_on_until_the_latest_safe_moment(node: Node) -> None:
    with serve_metadata("azure") as service:
        node = replace(node, watcher="azure", metadata_base=service.url)
        with node:
            node.run()
            node.start(run=WORKER, engine="spotd")
            node.wait_for(wire.PROGRESS)
            # Too soon for a save at once, which would be measured.
            deadline_us = in_us(14.9) // 1_000_000 * 1_000_000
            service.publish("preempt", deadline_us)
            released = node.wait_for(wire.RELEASED)
            exited = node.wait_for(wire.EXITED)
            wait_until("acknowledged", lambda: service.told)
    asked = node.entries(wire.DRAINING)[1]
    # The 5 s that nobody has measured yet for a save in flight, 1.3 x as much for the last one, 2 s
    # of margin, and a step.
    assert (deadline_us - asked.at_us) / 1e6 <= 13.6
    assert (deadline_us - released.at_us) / 1e6 > 10.0, "time for both saves, had they taken it"
    assert exited.data["code"] == wire.EXIT_RELEASED
    assert service.told == [("acknowledged", {"id": "notice-1"})]
    plans = [entry.data for entry in node.entries(wire.DRAINING)]
    assert "keep training until the replacement is ready" in plans[0]["plan"]
    assert plans[1]["reason"] == "preempt notice: the latest safe moment"
    assert [plan.get("stops") for plan in plans] == [None, True], "it is asked once"


def test_a_measured_save_moves_the_latest_safe_moment(node: Node) -> None:
    with serve_metadata("azure") as service:
        node = replace(node, watcher="azure", metadata_base=service.url)
        with node:
            node.train_and_save(f"{WORKER} --save-s 0.1")
            deadline_us = in_us(7.0) // 1_000_000 * 1_000_000
            service.publish("preempt", deadline_us)
            released = node.wait_for(wire.RELEASED)
    assert 0 < (deadline_us - released.at_us) / 1e6 <= 2.3
    assert node.log().count("save") == 2, "one asked for, one at once because it fits"


def test_a_program_that_plans_its_last_save_is_left_to_it_and_then_held_to_it(node: Node) -> None:
    """Without a plan the agent would request the stop 4.3 s before the end, with a plan 3 s before.
    The program starts its save 3.5 s before, and no line of its script runs after it."""
    with serve_metadata("azure") as service:
        node = replace(node, watcher="azure", metadata_base=service.url)
        with node:
            node.train_and_save(f"{WORKER} --save-s 1.0 --plan-s 2.5\necho another line")
            deadline_us = in_us(11.0) // 1_000_000 * 1_000_000
            service.publish("preempt", deadline_us)
            exited = node.wait_for(wire.EXITED)
    leaves = [entry for entry in node.entries(wire.PLAN) if entry.data["action"] == "save"]
    stop = node.entries(wire.DRAINING)[-1]
    assert stop.data["reason"] == "the program's own plan for the notice: save"
    assert stop.data["stops"] is True
    assert 2.9 < (deadline_us - leaves[0].at_us) / 1e6 <= 3.6
    assert exited.data["ranks"]["worker0"] == wire.EXIT_RELEASED
    assert "another line" not in node.log()


def test_a_notice_too_short_for_our_own_stop_is_left_to_a_program_that_plans(node: Node) -> None:
    """Without a plan the agent would request the stop 6.6 s before the end, that is at once; the
    program starts its last save 4.2 s before."""
    with serve_metadata("azure") as service:
        node = replace(node, watcher="azure", metadata_base=service.url)
        with node:
            node.train_and_save(f"{WORKER} --save-s 2.0 --plans --plan-s 3.2")
            deadline_us = in_us(6.6) // 1_000_000 * 1_000_000
            service.publish("preempt", deadline_us)
            node.wait_for(wire.EXITED)
    assert (
        node.entries(wire.DRAINING)[-1].data["reason"]
        == "the program's own plan for the notice: save"
    )
    assert [entry.data["action"] for entry in node.entries(wire.PLAN)] == ["train", "save"]


@pytest.mark.req("PRE-05")
def test_a_slow_step_is_finished_and_saved_before_the_deadline(node: Node) -> None:
    """A request 2.2 s before the end, enough for a quick save, would be too late for this step."""
    with serve_metadata("azure") as service:
        node = replace(node, watcher="azure", metadata_base=service.url)
        with node:
            node.train_and_save(f"{WORKER} --save-s 0.05 --step-s 4")
            node.kill_agent()
            node.run()  # it remembers how long a step takes
            seen = len(node.entries(wire.PROGRESS))
            wait_until("a new step", lambda: len(node.entries(wire.PROGRESS)) > seen)
            # Steps end 4 s and 8 s from now, and none in the last 2.2 s that there are.
            service.publish("preempt", in_us(7.9) // 1_000_000 * 1_000_000)
            exited = node.wait_for(wire.EXITED)
    # The shell around it was ended before its next line.
    assert exited.data["ranks"] == {"0": 128 + 15, "worker0": wire.EXIT_RELEASED}
    assert node.wait_for(wire.RELEASED)


def test_a_notice_that_says_now_stops_at_once(node: Node) -> None:
    with serve_metadata("aws") as service:
        node = replace(node, watcher="aws", metadata_base=service.url)
        with node:
            node.run()
            node.start(run=WORKER, engine="spotd", stop_grace_s=4 * LIMIT_S)
            node.wait_for(wire.PROGRESS)
            service.publish("preempt", in_us(-5.0))
            noticed = node.wait_for(wire.NOTICE)
            node.wait_for(wire.RELEASED)
            node.wait_for(wire.EXITED)
    assert noticed.data["remaining_s"] == 0


def test_a_rebalance_recommendation_is_only_journalled(node: Node) -> None:
    with serve_metadata("aws") as service:
        node = replace(node, watcher="aws", metadata_base=service.url)
        with node:
            node.run()
            node.start(run=WORKER, engine="spotd")
            node.wait_for(wire.PROGRESS)
            service.publish("rebalance", in_us(1.0))
            assert node.wait_for(wire.NOTICE, LIMIT_S).data["kind"] == "rebalance"
            node.live_on(1.5)
            assert node.is_program_alive()
            assert wire.DRAINING not in node.kinds()


def test_a_preemption_before_anything_runs_ends_the_wait(node: Node) -> None:
    with serve_metadata("aws") as service:
        node = replace(node, watcher="aws", metadata_base=service.url)
        with node:
            node.run()
            node.start(claim="after_release", claim_deadline_s=60.0, setup="sleep 1000")
            node.wait_for(wire.SETUP)
            until(lambda: node.pids("setup") is not None)
            service.publish("preempt", in_us(-1.0))
            assert node.wait_for(wire.EXITED).data["code"] == wire.EXIT_RELEASED
            assert wire.CLAIMED not in node.kinds()
    assert node.head() is None
