"""The notices that take this machine away, on our own clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from providers.base import Notice, NoticeKind
from trainer.agent.base.stop_timing import StopTiming


@dataclass(frozen=True)
class ActiveNotice:
    """`deadline` in monotonic seconds; None: it may happen at any moment."""

    notice: Notice
    heard_at: float
    deadline: float | None

    @property
    def reason(self) -> str:
        return f"{self.notice.kind.value} notice"

    def latest_stop(self, policy: StopTiming, now: float) -> float:
        """When to stop at the latest."""
        if self.deadline is None:
            return now
        return policy.latest_stop(self.heard_at, self.deadline)


class ActiveNotices:
    """Those in force. A rebalance recommendation is none: it takes nothing away."""

    def __init__(self, monotonic: Callable[[], float], now_us: Callable[[], int]) -> None:
        self._monotonic = monotonic
        self._now_us = now_us
        self._known: dict[str, ActiveNotice] = {}

    def __iter__(self) -> Iterator[ActiveNotice]:
        return iter(self._known.values())

    def meet(self, notice: Notice) -> ActiveNotice | None:
        """Take up a notice, or its new deadline if that is earlier. The wall clock is read here and
        never again: it may be set at any moment.

        A later deadline is not believed: a watcher that was started again counts from that moment
        where the cloud says only that the end is near.
        """
        if notice.kind is NoticeKind.REBALANCE:
            return None
        now, deadline = self._monotonic(), None
        if notice.deadline_us is not None:
            deadline = now + (notice.deadline_us - self._now_us()) / 1e6
        known = self._known.get(notice.notice_id)
        if known is None:
            danger = ActiveNotice(notice, now, deadline)
        elif deadline is None or known.deadline is None:
            danger = ActiveNotice(notice, known.heard_at, None)
        else:
            danger = ActiveNotice(notice, known.heard_at, min(deadline, known.deadline))
        self._known[notice.notice_id] = danger
        return danger

    def withdraw(self, notice_id: str) -> None:
        self._known.pop(notice_id, None)

    @property
    def deadline(self) -> float | None:
        """The earliest that is known."""
        return min((d.deadline for d in self if d.deadline is not None), default=None)

    def due(self, policy: StopTiming, now: float) -> ActiveNotice | None:
        """One for which it is time to stop."""
        return next((d for d in self if d.latest_stop(policy, now) <= now), None)
