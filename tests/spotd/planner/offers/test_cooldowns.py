"""What was refused spoils as much of the market as its scope says, and longer each time."""

from __future__ import annotations

import pytest

from providers.base import CapacityType, Offer, Scope
from spotd.domain.market import Refusal
from spotd.domain.states import LeaveReason, NodeState
from spotd.domain.units import S
from spotd.planner.offers.cooldowns import (
    BASE_S,
    CAP_S,
    OWN_IMAGE,
    cooldown_until_us,
    refusal_code,
    refusal_of,
    spoiled_places,
)
from tests.spotd.planner.build import node

NOW = 1_000_000 * S
REFUSED = "aws/us-1/us-1a/8xh100/spot"


def offer(key: str) -> Offer:
    provider, region, zone, kind, capacity = key.split("/")
    return Offer(provider, region, zone, kind, CapacityType(capacity), 10, 40)


def cooling(
    refusals: list[Refusal], key: str = REFUSED, job_id: str = "j1", boot_timeout_s: float = 60.0
) -> tuple[int, str]:
    """Until when, and why."""
    return cooldown_until_us(offer(key), spoiled_places(refusals, job_id), boot_timeout_s)


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
    refused = [Refusal(REFUSED, scope, "CapacityError", NOW)]
    expected = (NOW + int(BASE_S["CapacityError"] * S), "CapacityError")
    assert cooling(refused, key) == (expected if scope in spoiled_by else (0, ""))


@pytest.mark.parametrize(
    ("code", "pause_s"),
    [("PriceError", 300), ("AuthError", 300), ("RejectedError", 3600), ("NewError", 60)],
)
def test_what_does_not_pass_by_itself_soon_is_not_asked_for_again_soon(
    code: str, pause_s: int
) -> None:
    assert cooling([Refusal(REFUSED, Scope.OFFER, code, NOW)]) == (NOW + pause_s * S, code)


@pytest.mark.parametrize(("times", "pause_s"), [(1, 120), (2, 240), (3, 480), (9, CAP_S)])
def test_repeats_double_it(times: int, pause_s: float) -> None:
    base_us = int(BASE_S["Preempted"] * S)
    again = [Refusal(REFUSED, Scope.OFFER, "Preempted", NOW - at * base_us) for at in range(times)]
    until_us, why = cooling(again)
    assert (until_us - NOW, why) == (int(pause_s * S), "Preempted")


def test_a_gang_that_is_taken_away_is_one_repeat() -> None:
    """Eight machines of one offer, within seconds; and the same once more after the cooldown."""
    first = [Refusal(REFUSED, Scope.OFFER, "Preempted", NOW - rank * S) for rank in range(8)]
    until_us, _ = cooling(first)
    assert until_us - NOW == 120 * S
    later = [Refusal(REFUSED, Scope.OFFER, "Preempted", NOW + (150 + at) * S) for at in range(8)]
    until_us, _ = cooling(first + later)
    assert until_us - (NOW + 157 * S) == 240 * S


@pytest.mark.parametrize(
    ("error", "image_id", "code"),
    [
        ("UnpreparedError", "ami-1", OWN_IMAGE),
        ("UnpreparedError", "", "UnpreparedError"),
        ("UnpreparedError", "docker:r.io/x:1", "UnpreparedError"),  # no machine's image
        ("CapacityError", "ami-1", "CapacityError"),
    ],
)
def test_what_may_be_the_fault_of_a_jobs_own_image(error: str, image_id: str, code: str) -> None:
    assert refusal_code(error, image_id) == code


@pytest.mark.parametrize("code", ["Outbid", "NotLentError", OWN_IMAGE])
def test_what_is_a_matter_of_one_job_cools_for_that_job_alone(code: str) -> None:
    """It left for a better place, or its store is one of which nobody lends."""
    left = [Refusal(REFUSED, Scope.OFFER, code, NOW, "j1-g2-c0-r0")]
    until_us, _ = cooling(left)
    assert until_us == NOW + int(BASE_S[code] * S)
    for other in ("j", "j10", ""):
        assert cooling(left, job_id=other) == (0, ""), other


def test_what_another_job_left_for_a_better_one_hides_no_refusal_behind_it() -> None:
    left = Refusal(REFUSED, Scope.OFFER, "Outbid", NOW, "j2-g2-c0-r0")
    full = Refusal(REFUSED, Scope.OFFER, "CapacityError", NOW)
    until_us, why = cooling([left, full])
    assert (until_us, why) == (NOW + 60 * S, "CapacityError")


def test_what_lies_an_hour_back_is_no_repeat() -> None:
    old = Refusal(REFUSED, Scope.OFFER, "Lost", NOW - 3600 * S)
    new = Refusal(REFUSED, Scope.OFFER, "Lost", NOW)
    assert cooling([old, new]) == (NOW + 120 * S, "Lost")


@pytest.mark.parametrize(
    ("boot_timeout_s", "pauses_s"),
    [(60.0, [120, 240, 480, 960]), (900.0, [1800, 3600, 3600]), (3600.0, [7200, 7200])],
)
def test_what_does_not_boot_cools_for_longer_than_it_was_waited_for_and_longer_each_time(
    boot_timeout_s: float, pauses_s: list[int]
) -> None:
    """Asked for again as soon as it is free, and no better."""
    at_us, refusals = NOW, []
    for pause_s in pauses_s:
        refusals.append(Refusal(REFUSED, Scope.OFFER, "BootTimeout", at_us))
        until_us, why = cooling(refusals, boot_timeout_s=boot_timeout_s)
        assert ((until_us - at_us) / S, why) == (pause_s, "BootTimeout")
        at_us = until_us + int(boot_timeout_s * S)


L, B, R, D, T, G = NodeState


@pytest.mark.parametrize(
    ("state", "times", "at_us"),
    [
        (D, {"left_at_us": NOW}, NOW),
        (T, {"left_at_us": NOW, "gone_at_us": NOW + 90 * S}, NOW),
        (G, {"left_at_us": NOW, "gone_at_us": NOW + 90 * S}, NOW + 90 * S),
        (G, {"left_at_us": NOW + S, "gone_at_us": NOW}, NOW + S),
    ],
)
def test_a_cooldown_counts_from_when_the_node_left(
    state: NodeState, times: dict[str, int], at_us: int
) -> None:
    left = node(state, leave_reason=LeaveReason.PREEMPTED, **times)
    assert refusal_of(left) == Refusal(left.offer.key, Scope.OFFER, "Preempted", at_us, left.id)


@pytest.mark.parametrize("reason", [None, LeaveReason.DONE, LeaveReason.CAPACITY])
def test_other_ends_say_nothing_about_the_offer(reason: LeaveReason | None) -> None:
    assert refusal_of(node(G, leave_reason=reason, gone_at_us=NOW)) is None


def test_the_longest_of_several_counts() -> None:
    refusals = [
        Refusal(REFUSED, Scope.OFFER, "Preempted", NOW),
        Refusal("aws/us-1/us-1b/1xh100/spot", Scope.REGION, "QuotaError", NOW - S),
        Refusal(REFUSED, Scope.ZONE, "CapacityError", NOW),
    ]
    until_us, why = cooling(refusals)
    assert (until_us, why) == (NOW + 599 * S, "QuotaError")


def test_no_quota_is_looked_at_once_an_hour_and_an_unprepared_region_more_often() -> None:
    """Somebody may have asked for the one, and mended the other.."""
    place = "aws/us-1/us-1b/1xh100/spot"
    for code, cools_s in (("NoQuotaError", 3600), ("UnpreparedError", 900)):
        refusals = [Refusal(place, Scope.REGION, code, NOW)]
        assert cooling(refusals) == (NOW + cools_s * S, code)
    for_days = [Refusal(place, Scope.REGION, "NoQuotaError", NOW - n * 3600 * S) for n in range(5)]
    assert cooling(for_days) == (NOW + 3600 * S, "NoQuotaError")


@pytest.mark.parametrize("code", ["CapacityError", "Preempted", "Lost", "QuotaError"])
def test_what_had_no_room_cools_for_no_longer_than_whoever_asks_says(code: str) -> None:
    times = [NOW - minutes * 60 * S for minutes in (0, 10, 20, 30, 40)]
    said = spoiled_places([Refusal(REFUSED, Scope.OFFER, code, at) for at in times], "j1")
    until_us, _ = cooldown_until_us(offer(REFUSED), said, 60.0, no_room_cap_s=600.0)
    longest_s, _ = cooldown_until_us(offer(REFUSED), said, 60.0)
    capped = code != "QuotaError"
    assert until_us == (NOW + 600 * S if capped else longest_s)
    assert longest_s > NOW + 600 * S
