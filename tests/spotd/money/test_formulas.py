"""The formulas reproduce what the sources' own figures come to."""

from __future__ import annotations

import pytest

from spotd.domain.units import US_PER_H
from spotd.money import formulas as f
from spotd.money.units import cost_microusd
from trainer.hook.spotd_hook import cadence


def test_the_pause_that_loses_least() -> None:
    """Beside it, saves and the half of a pause that is made again take more of the time."""
    hazard, save = 0.0324, 0.01
    best = f.best_pause_h(hazard, save)

    def lost(pause: float) -> float:
        return save / pause + hazard * pause / 2

    assert lost(best) < min(lost(best * 1.1), lost(best * 0.9))


@pytest.mark.req("CKP-08")
@pytest.mark.parametrize(("save_s", "minutes"), [(60, 60.9), (180, 105.5)])
def test_the_best_pause_of_the_case_study(save_s: float, minutes: float) -> None:
    """One interruption in 30.9 h. What runs goes by the same formula, up to an hour."""
    found_s = f.best_pause_h(1 / 30.9, save_s / 3600) * 3600
    assert found_s / 60 == pytest.approx(minutes, abs=0.05)
    mine_s = cadence.interval_s(save_s, 0.0, 30.9 * 3600)
    assert mine_s == pytest.approx(min(found_s, cadence.MAX_INTERVAL_S))
    step_s = 216 * 3600 / 49_219
    if save_s == 180:
        assert found_s / step_s == pytest.approx(400, abs=1)


@pytest.mark.req("CST-15")
def test_an_outlay_is_earned_back() -> None:
    """$10,000 to $20,000 against $2,000 to $5,000 a month; 7 to 11 days at $200 an hour."""
    assert f.payback(10_000, 5_000) == 2
    assert f.payback(20_000, 2_000) == 10
    assert [days * 8 * 200 for days in (7, 11)] == [11_200, 17_600]


def test_estimate_at_completion() -> None:
    assert f.estimate_at_completion(10, 5, [], [2]) is None
    sure = f.estimate_at_completion(10, 5, [0.1], [2])
    assert sure is not None
    assert sure.low == sure.middle == sure.high == pytest.approx(21)
    spread = f.estimate_at_completion(0, 10, [0.0, 0.1, 0.2], [1.0, 2.0])
    assert spread is not None
    assert spread.low < spread.middle < spread.high
    assert spread.low == pytest.approx(10.5)
    assert spread.high == pytest.approx(23.0)


@pytest.mark.req("CST-18")
@pytest.mark.parametrize(
    ("nodes", "hours", "usd_per_node_h", "usd"),
    [(0.5, 48, 98.32, 2_360), (1, 288, 96.0, 27_648), (8, 2_304, 96.0, 1_769_472)],
    ids=["7B on half a node", "70B on one", "500B on eight"],
)
def test_a_rate_of_a_node_is_not_one_of_a_gpu(
    nodes: float, hours: int, usd_per_node_h: float, usd: int
) -> None:
    """A source has $18,816 for the first, a node's rate times GPUs, and $221,184 for the last, one
    node of eight."""
    rate = round(nodes * usd_per_node_h * 1_000_000)
    assert round(cost_microusd(rate, 0, hours * US_PER_H) / 1e6) == usd
