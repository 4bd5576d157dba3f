"""Market signals are fetched once an hour, and a failure costs no offer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from providers.base import AuthError, CapacityType, Offer, ThrottledError, UnknownOutcome
from providers.market_signals import INTERVAL_S, MarketSignal

SPOT = Offer("aws", "r", "r-a", "p5", CapacityType.SPOT, 10, 50)
OTHER = replace(SPOT, zone="r-b")
PLAIN = replace(SPOT, capacity_type=CapacityType.ON_DEMAND)


class Cloud:
    """Returns scores, or raises an error."""

    def __init__(self) -> None:
        self.now_s = 5.0
        self.asked: list[list[Offer]] = []
        self.told: Mapping[str, int] | Exception = {SPOT.key: 7}
        self.scores = MarketSignal("aws", "placement scores", self.ask, lambda: self.now_s)

    def ask(self, offers: Sequence[Offer]) -> Mapping[str, int]:
        self.asked.append([*offers])
        if isinstance(self.told, Exception):
            raise self.told
        return self.told


def test_once_an_hour_for_spot_alone() -> None:
    cloud = Cloud()
    for _ in range(3):
        result = cloud.scores.annotate([SPOT, OTHER, PLAIN])
        assert result == [replace(SPOT, score=7), OTHER, PLAIN]
    assert cloud.asked == [[SPOT, OTHER]]
    cloud.now_s += INTERVAL_S
    cloud.told = {OTHER.key: 2}
    assert cloud.scores.annotate([SPOT, OTHER]) == [SPOT, replace(OTHER, score=2)]
    assert len(cloud.asked) == 2
    assert cloud.scores.warnings() == []


def test_without_spot_nobody_is_asked() -> None:
    cloud = Cloud()
    assert cloud.scores.annotate([PLAIN]) == [PLAIN]
    assert cloud.scores.annotate([]) == []
    assert cloud.asked == []


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (AuthError("no right to it"), 1),
        (AttributeError("an old SDK"), 1),
        (KeyError("Score"), 1),
        (UnknownOutcome("timed out"), 0),
        (ThrottledError("later"), 0),
    ],
)
def test_a_failure_costs_no_offer_and_is_told_once(error: Exception, told: int) -> None:
    cloud = Cloud()
    cloud.told = error
    for _ in range(3):
        assert cloud.scores.annotate([SPOT, PLAIN]) == [SPOT, PLAIN]
    assert len(cloud.asked) == 1, "not again within the hour"
    cloud.now_s += INTERVAL_S
    cloud.scores.annotate([SPOT])
    result = cloud.scores.warnings()
    assert len(result) == told
    for remark in result:
        assert (remark.key, remark.times) == ("signal/aws/placement scores", 2)
        assert str(error) in remark.text
    cloud.now_s += INTERVAL_S
    cloud.told = {SPOT.key: 3}
    assert cloud.scores.annotate([SPOT]) == [replace(SPOT, score=3)]


def test_another_number_has_a_field_of_its_own() -> None:
    rates = MarketSignal(
        "azure", "eviction rates", lambda _: {SPOT.key: 10}, lambda: 0.0, "evicted_pct"
    )
    scored = replace(SPOT, score=7)
    assert rates.annotate([scored, OTHER]) == [replace(scored, evicted_pct=10), OTHER]
