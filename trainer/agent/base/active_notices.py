"""Preemption and maintenance notices in force, with their deadlines on the monotonic clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from providers.base import Notice
from trainer.agent.base.stop_timing import StopTiming


@dataclass(frozen=True)
class ActiveNotice:
    """A notice that takes this machine away.

    `received_at` and `deadline` are monotonic seconds. Without a deadline the machine may go at any
    moment.
    """

    notice: Notice
    received_at: float
    deadline: float | None

    @property
    def reason(self) -> str:
        return f"{self.notice.kind.value} notice"

    def latest_stop(self, timing: StopTiming, now: float) -> float:
        """Return the latest safe moment to stop training, in monotonic seconds."""
        if self.deadline is None:
            return now
        return timing.latest_stop(self.received_at, self.deadline)


class ActiveNotices:
    """All notices in force except rebalance recommendations, which take nothing away."""

    def __init__(self, monotonic: Callable[[], float], now_us: Callable[[], int]) -> None:
        self._monotonic = monotonic
        self._now_us = now_us
        self._notices: dict[str, ActiveNotice] = {}

    def __iter__(self) -> Iterator[ActiveNotice]:
        return iter(self._notices.values())

    def add(self, notice: Notice) -> ActiveNotice | None:
        """Add a notice, or move the deadline of a known one earlier.

        The wall clock is read only here, because it may be set at any moment. A later deadline is
        ignored: a restarted watcher counts from its own start where the cloud says only that the
        end is near.
        """
        if not notice.kind.takes_machine:
            return None
        now, deadline = self._monotonic(), None
        if notice.deadline_us is not None:
            deadline = now + (notice.deadline_us - self._now_us()) / 1e6
        known = self._notices.get(notice.notice_id)
        if known is None:
            active = ActiveNotice(notice, now, deadline)
        elif deadline is None or known.deadline is None:
            active = ActiveNotice(notice, known.received_at, None)
        else:
            active = ActiveNotice(notice, known.received_at, min(deadline, known.deadline))
        self._notices[notice.notice_id] = active
        return active

    def withdraw(self, notice_id: str) -> None:
        self._notices.pop(notice_id, None)

    @property
    def deadline(self) -> float | None:
        """The earliest known deadline, in monotonic seconds."""
        return min((d.deadline for d in self if d.deadline is not None), default=None)

    def due(self, timing: StopTiming, now: float) -> ActiveNotice | None:
        """Return a notice for which it is time to stop training, if there is one."""
        return next((d for d in self if d.latest_stop(timing, now) <= now), None)
