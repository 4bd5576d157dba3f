"""What was refused spoils as much of the market as its scope says, and longer each time."""

from __future__ import annotations

import pytest

from providers.base import CapacityType, Offer, Scope
from spotd.decide.cooldowns import BASE_S, CAP_S, cooldown_until_us, spoiled_places
from spotd.model import Refusal, S

NOW = 1_000_000 * S
REFUSED = "aws/us-1/us-1a/8xh100/spot"


def offer(key: str) -> Offer:
    provider, region, zone, kind, capacity = key.split("/")
    return Offer(provider, region, zone, kind, CapacityType(capacity), 10, 40)


@pytest.mark.parametrize(
    ("key", "spoiled_by"),
    [
        (REFUSED, set(Scope)),
        ("aws/us-1/us-1a/8xh100/on_demand", {Scope.ZONE, Scope.REGION, Scope.PROVIDER}),
        ("aws/us-1/us-1a/1xh100/spot", {Scope.ZONE, Scope.REGION, Scope.PROVIDER}),
        ("aws/us-1/us-1b/8xh100/spot", {Scope.REGION, Scope.PROVIDER}),
        ("aws/us-10/us-1a/8xh100/spot", {Scope.PROVIDER}),
        ("aws2/us-1/us-1a/8xh100/spot", set()),
    ],
)
@pytest.mark.parametrize("scope", Scope)
def test_the_scope_says_what_is_spoiled(key: str, spoiled_by: set[Scope], scope: Scope) -> None:
    spoiled = spoiled_places([Refusal(REFUSED, scope, "CapacityError", NOW)])
    expected = (NOW + int(BASE_S["CapacityError"] * S), "CapacityError")
    assert cooldown_until_us(offer(key), spoiled) == (expected if scope in spoiled_by else (0, ""))


@pytest.mark.parametrize(("times", "pause_s"), [(1, 120), (2, 240), (3, 480), (9, CAP_S)])
def test_repeats_double_it(times: int, pause_s: float) -> None:
    again = [Refusal(REFUSED, Scope.OFFER, "Preempted", NOW - at * S) for at in range(times)]
    until_us, why = cooldown_until_us(offer(REFUSED), spoiled_places(again))
    assert (until_us - NOW, why) == (int(pause_s * S), "Preempted")


def test_what_lies_an_hour_back_is_no_repeat() -> None:
    old = Refusal(REFUSED, Scope.OFFER, "Lost", NOW - 3600 * S)
    new = Refusal(REFUSED, Scope.OFFER, "Lost", NOW)
    assert cooldown_until_us(offer(REFUSED), spoiled_places([old, new])) == (NOW + 120 * S, "Lost")


def test_the_longest_of_several_counts() -> None:
    refusals = [
        Refusal(REFUSED, Scope.OFFER, "Preempted", NOW),
        Refusal("aws/us-1/us-1b/1xh100/spot", Scope.REGION, "QuotaError", NOW - S),
        Refusal(REFUSED, Scope.ZONE, "CapacityError", NOW),
    ]
    until_us, why = cooldown_until_us(offer(REFUSED), spoiled_places(refusals))
    assert (until_us, why) == (NOW + 599 * S, "QuotaError")
