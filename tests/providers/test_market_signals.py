"""Scores are asked for once an hour, and whatever comes of that costs no offer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from providers.base import AuthError, CapacityType, Offer, ThrottledError, UnknownOutcome
from providers.market_signals import ROUND_S, Scores

SPOT = Offer("aws", "r", "r-a", "p5", CapacityType.SPOT, 10, 50)
OTHER = replace(SPOT, zone="r-b")
PLAIN = replace(SPOT, capacity_type=CapacityType.ON_DEMAND)


class Cloud:
    """Scores, or an error."""

    def __init__(self) -> None:
        self.now_s = 5.0
        self.asked: list[list[Offer]] = []
        self.told: Mapping[str, int] | Exception = {SPOT.key: 7}
        self.scores = Scores("aws", "placement scores", self.ask, lambda: self.now_s)

    def ask(self, offers: Sequence[Offer]) -> Mapping[str, int]:
        self.asked.append([*offers])
        if isinstance(self.told, Exception):
            raise self.told
        return self.told


def test_once_an_hour_for_spot_alone() -> None:
    cloud = Cloud()
    for _ in range(3):
        found = cloud.scores.fill_in([SPOT, OTHER, PLAIN])
        assert found == [replace(SPOT, score=7), OTHER, PLAIN]
    assert cloud.asked == [[SPOT, OTHER]]
    cloud.now_s += ROUND_S
    cloud.told = {OTHER.key: 2}
    assert cloud.scores.fill_in([SPOT, OTHER]) == [SPOT, replace(OTHER, score=2)]
    assert len(cloud.asked) == 2
    assert cloud.scores.remarks() == []


def test_without_spot_nobody_is_asked() -> None:
    cloud = Cloud()
    assert cloud.scores.fill_in([PLAIN]) == [PLAIN]
    assert cloud.scores.fill_in([]) == []
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
        assert cloud.scores.fill_in([SPOT, PLAIN]) == [SPOT, PLAIN]
    assert len(cloud.asked) == 1, "not again within the hour"
    cloud.now_s += ROUND_S
    cloud.scores.fill_in([SPOT])
    found = cloud.scores.remarks()
    assert len(found) == told
    for remark in found:
        assert (remark.key, remark.times) == ("signal/aws/placement scores", 2)
        assert str(error) in remark.text
    cloud.now_s += ROUND_S
    cloud.told = {SPOT.key: 3}
    assert cloud.scores.fill_in([SPOT]) == [replace(SPOT, score=3)]


def test_another_number_has_a_field_of_its_own() -> None:
    rates = Scores("azure", "eviction rates", lambda _: {SPOT.key: 10}, lambda: 0.0, "evicted_pct")
    scored = replace(SPOT, score=7)
    assert rates.fill_in([scored, OTHER]) == [replace(scored, evicted_pct=10), OTHER]
