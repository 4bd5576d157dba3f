"""A job that hears nothing is decided about now and then, never all the time."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings

from spotd.domain.market import Market
from spotd.domain.units import S
from spotd.domain.view import View
from tests.fixtures.examples import examples
from tests.spotd.planner.build import NOW, settle
from tests.spotd.planner.test_properties import markets, views

SPAN_S = 300
MOST = SPAN_S  # passes: one a second and job at the very most


@settings(max_examples=examples(60), deadline=None)
@given(views(), markets())
def test_timers_alone_never_spin(before: View, market_: Market) -> None:
    """Nobody answers: calls time out and are made again, waits run out, and nothing is observed."""
    view, now = before, NOW
    passes = 0
    while now < NOW + SPAN_S * S:
        view, plan = settle(view, market_, now)
        view = replace(view, loaded_at_us=now)
        passes += 1
        assert passes <= MOST, f"{plan.reason}, and the next at {(plan.wake_at_us - now) / S} s"
        if not plan.wake_at_us:
            return
        assert plan.wake_at_us > now
        now = plan.wake_at_us
