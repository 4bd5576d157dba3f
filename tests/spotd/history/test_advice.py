"""Phases by size: who goes where, what it costs by hand, and that no saving beats its discount."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotd.history.advice import (
    PROMISED,
    PhaseRequest,
    Recommendation,
    is_available,
    lost_share,
    on_spot,
    phases,
    recommend,
    total_dollars,
    usual_hours,
)
from spotd.history.intervals import share
from spotd.history.spot_value import (
    HYBRID,
    SEARCH,
    SHORT,
    SPOT,
    Hazard,
    InterruptionCost,
    Mode,
    SpotValue,
    compare,
    mode_of,
)

# The case study: 7 interruptions in 216 h, each 11 min and 25 min of work again.
CASE = InterruptionCost(1, 11 / 60, 25 / 60)
SEEN = Hazard(7 / 216, 0.0152, 0.0609, 7, 216.0, 0.0)
HOURS = {PhaseRequest.SEARCH: 72.0, PhaseRequest.TRAIN: 216.0, PhaseRequest.VALIDATE: 24.0}


def worth(spot: float = 11.92, on_demand: float = 16.0) -> SpotValue:
    return compare((spot, 0.0), (on_demand, 0.0), SEEN, 0.0, CASE)


@pytest.mark.req("HYB-03")
@pytest.mark.parametrize(
    ("billions", "mode", "parts"),
    [
        (7, SPOT, [PhaseRequest.SEARCH, PhaseRequest.TRAIN]),
        (13, SPOT, [PhaseRequest.SEARCH, PhaseRequest.TRAIN]),
        (72, HYBRID, [PhaseRequest.SEARCH, PhaseRequest.TRAIN]),
        (405, SEARCH, [PhaseRequest.SEARCH]),
    ],
)
def test_phases_by_size(billions: float, mode: Mode, parts: list[PhaseRequest]) -> None:
    assert mode_of(billions * 1e9, 216.0) is mode
    result = phases(mode, HOURS, lambda _hours: worth())
    assert [item.part for item in result] == list(PhaseRequest)
    assert [item.part for item in result if item.spot] == parts
    assert not on_spot(SHORT, PhaseRequest.SEARCH)


@pytest.mark.parametrize("mode", [SPOT, HYBRID, SEARCH, SHORT])
def test_validation_is_never_on_spot(mode: Mode) -> None:
    assert not on_spot(mode, PhaseRequest.VALIDATE)
    (last,) = phases(mode, {PhaseRequest.VALIDATE: 24.0}, lambda _hours: worth(0.01))
    assert not last.spot
    assert last.dollars.usd == last.dollars.on_demand_usd == 24 * 16
    assert "must not be preempted" in last.why


@pytest.mark.req("HYB-03")
def test_the_case_study_by_its_own_prices() -> None:
    """288 h at 11.92 / 0.980556 and 24 h at 16: 3,885.03 of 4,992, where guides say 60 to 75 %."""
    result = phases(HYBRID, HOURS, lambda _hours: worth())
    total = total_dollars(result)
    assert total.on_demand_usd == pytest.approx(312 * 16)
    assert total.usd == pytest.approx(288 * 12.156374 + 384, abs=0.01)
    assert total.saving == pytest.approx(0.22175, abs=1e-5)
    assert total.saving < total.discount < 0.255 < PROMISED[HYBRID.name][0]
    # Without interruptions it would be the bill of the case study: 858 + 2,575 + 384.
    assert total.priced_usd == pytest.approx(858.24 + 2574.72 + 384)
    assert result[1].takes_h == pytest.approx(216 / (1 - 7 / 216 * 0.6))


def test_a_discount_that_does_not_pay_has_everything_on_demand() -> None:
    result = phases(HYBRID, HOURS, lambda _hours: worth(15.9))
    assert [item.spot for item in result] == [False, False, False]
    assert result[0].why == "spot does not pay today"
    assert total_dollars(result).saving == 0.0


def test_only_phases_whose_hours_are_known() -> None:
    result = phases(
        HYBRID, {PhaseRequest.TRAIN: 10.0, PhaseRequest.SEARCH: 0.0}, lambda _hours: worth()
    )
    assert [item.part for item in result] == [PhaseRequest.TRAIN]
    assert phases(HYBRID, HOURS, lambda _hours: None) == []
    assert total_dollars([]).saving == 0.0


def test_a_job_that_keeps_nothing_costs_the_more_the_longer_it_is() -> None:
    def at(hours: float) -> SpotValue:
        return compare(
            (5.0, 0.0), (16.0, 0.0), SEEN, 0.0, InterruptionCost(1, 0.1, None, hours=hours)
        )

    short, long = phases(SPOT, {PhaseRequest.SEARCH: 4.0, PhaseRequest.TRAIN: 216.0}, at)
    assert short.spot
    assert short.takes_h == pytest.approx((216 / 7 + 0.1) * math.expm1(4 * 7 / 216))
    assert not long.spot


@given(
    spot=st.floats(0.1, 30), other=st.floats(0.1, 30), lasting=st.floats(0, 0.5),
    mode=st.sampled_from([SPOT, HYBRID, SEARCH, SHORT]),
)  # fmt: skip
@pytest.mark.req("HYB-03")
def test_no_saving_is_above_the_discount(
    spot: float, other: float, lasting: float, mode: Mode
) -> None:
    at = compare((spot, 0.0), (other, 0.0), SEEN, lasting, CASE)
    result = phases(mode, HOURS, lambda _hours: at)
    for item in (*(row.dollars for row in result), total_dollars(result)):
        assert item.saving <= item.discount
        assert item.discount <= max(at.discount, 0.0) + 1e-9
        assert item.saving >= min(item.discount, 0.0) - 1e-9, "what does not pay is not advised"


def test_usual_hours() -> None:
    result = usual_hours(216.0)
    # 54 of 270 h are a fifth, 144 of 360 h two fifths.
    assert result[PhaseRequest.SEARCH] == pytest.approx((54.0, 144.0))
    assert result[PhaseRequest.VALIDATE] == pytest.approx((24.0, 24.0))


def test_what_interruptions_take() -> None:
    assert lost_share(7 / 216, CASE) == pytest.approx(0.019444, abs=1e-6)
    assert lost_share(7 / 216, InterruptionCost(4, 11 / 60, 25 / 60)) == pytest.approx(
        4 * 0.019444, abs=1e-5
    )
    assert lost_share(9.0, CASE) == 1.0


@pytest.mark.req("HYB-04", "HYB-05")
@pytest.mark.parametrize(
    ("holds", "pays", "result"),
    [
        ([True, True], True, Recommendation.SPOT),
        ([True, None], True, Recommendation.SPOT),
        ([True, False], True, Recommendation.ON_DEMAND),
        ([True, True], False, Recommendation.ON_DEMAND),
        ([True, None], None, Recommendation.UNKNOWN),
        ([None, False], None, Recommendation.ON_DEMAND),
    ],
)
def test_what_conditions_come_to(
    holds: list[bool | None], pays: bool | None, result: Recommendation
) -> None:
    assert recommend(holds, pays=pays) is result


@pytest.mark.parametrize(
    ("refused", "of", "holds"),
    [
        (0, 0, True),  # never asked for
        (1, 1, None),
        (3, 4, None),
        (10, 20, True),
        (11, 20, None),
        (14, 20, None),
        (15, 20, False),
        (95, 100, False),
        (5, 100, True),
    ],
)
def test_spot_that_is_mostly_refused_is_not_to_be_had(
    refused: int, of: int, holds: bool | None
) -> None:
    """Of 20 requests 14 may be an accident (the interval goes down to 49 %), 15 (54 %) are none."""
    assert is_available(share(refused, of)) is holds
