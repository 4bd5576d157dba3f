"""Notices in force, with deadlines on the monotonic clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from providers.base import Notice, NoticeKind
from trainer.agent.base.active_notices import ActiveNotice, ActiveNotices

NOW_S = 100.0
WALL_S = 1_000_000.0


class Clock:
    """The machine's monotonic and wall clocks, which advance together."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    def monotonic(self) -> float:
        return NOW_S + self.passed_s

    def now_us(self) -> int:
        return int((WALL_S + self.passed_s) * 1e6)


def notice(left_s: float | None) -> Notice:
    """A notice whose deadline is so many seconds from now, as of a cloud that gives no exact
    time."""
    deadline_us = None if left_s is None else int((WALL_S + left_s) * 1e6)
    return Notice("gcp-preempted", NoticeKind.PREEMPT, deadline_us)


def met(notices: ActiveNotices, heard: Notice) -> ActiveNotice:
    active = notices.add(heard)
    assert active is not None
    return active


@pytest.mark.parametrize(
    ("first_s", "then_s", "expected_s"),
    [(30.0, 42.0, 30.0), (30.0, 20.0, 20.0), (None, 30.0, None), (30.0, None, None)],
    ids=["later", "earlier", "known to be at any moment", "now at any moment"],
)
def test_the_earlier_deadline_stands(
    first_s: float | None, then_s: float | None, expected_s: float | None
) -> None:
    clock = Clock()
    notices = ActiveNotices(clock.monotonic, clock.now_us)
    met(notices, notice(first_s))
    clock.passed_s = 12.0
    active = met(notices, notice(then_s))
    assert active.received_at == NOW_S
    assert active.deadline == (None if expected_s is None else pytest.approx(NOW_S + expected_s))
    assert notices.deadline == active.deadline


def test_a_withdrawn_notice_that_comes_again_is_a_new_one() -> None:
    clock = Clock()
    notices = ActiveNotices(clock.monotonic, clock.now_us)
    met(notices, notice(30.0))
    notices.withdraw("gcp-preempted")
    assert met(notices, notice(60.0)).deadline == pytest.approx(NOW_S + 60.0)


def test_a_rebalance_recommendation_takes_nothing_away() -> None:
    clock = Clock()
    notices = ActiveNotices(clock.monotonic, clock.now_us)
    assert notices.add(replace(notice(30.0), kind=NoticeKind.REBALANCE)) is None
    assert notices.deadline is None
