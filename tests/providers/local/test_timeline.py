"""Scheduled actions run once, in order, or not at all."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from providers.local.timeline import Timeline
from tests.fixtures.waiting import LIMIT_S


@pytest.fixture
def timeline() -> Iterator[Timeline]:
    timeline = Timeline()
    yield timeline
    timeline.close()


def test_order_is_by_time_not_by_call(timeline: Timeline) -> None:
    done: list[str] = []
    last = threading.Event()
    started_s = time.monotonic()
    timeline.after(0.3, lambda: (done.append("late"), last.set()))
    timeline.after(0.1, lambda: done.append("soon"))
    timeline.after(-5, lambda: done.append("now"))
    assert last.wait(LIMIT_S)
    assert done == ["now", "soon", "late"]
    assert time.monotonic() - started_s >= 0.3


def test_a_slow_action_delays_no_other(timeline: Timeline) -> None:
    release, other = threading.Event(), threading.Event()
    timeline.after(0, lambda: release.wait(LIMIT_S))
    timeline.after(0.05, other.set)
    assert other.wait(LIMIT_S)
    release.set()


def test_cancelled_is_not_done(timeline: Timeline) -> None:
    done: list[str] = []
    after = threading.Event()
    scheduled = timeline.after(0.05, lambda: done.append("cancelled"))
    assert scheduled.cancel()
    assert not scheduled.cancel()
    timeline.after(0.2, after.set)
    assert after.wait(LIMIT_S)
    assert done == []


def test_begun_early_happens_once(timeline: Timeline) -> None:
    done: list[str] = []
    after = threading.Event()
    scheduled = timeline.after(0.05, lambda: done.append("once"))
    scheduled.run()
    scheduled.run()
    timeline.after(0.2, after.set)
    assert after.wait(LIMIT_S)
    assert done == ["once"]
    assert not scheduled.cancel()
