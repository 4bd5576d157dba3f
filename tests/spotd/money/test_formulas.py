"""The formulas reproduce what the sources' own figures come to."""

from __future__ import annotations

import pytest

from spotd.money import formulas as f
from spotd.money.units import US_PER_H, cost_microusd
from trainer.hook.spotd_hook import cadence


def test_the_second_phase_of_the_case_study() -> None:
    """216 h with 4.2 h lost in 7 interruptions, at $11.92 for eight GPUs; $2.00 dedicated."""
    assert f.goodput(216 - 4.2, 216) == pytest.approx(0.9806, abs=5e-5)
    price = f.effective_price(216 * 11.92, 8, 216 - 4.2)
    assert price == pytest.approx(1.5195, abs=1e-4)
    assert 1 - price / 2.00 == pytest.approx(0.240, abs=5e-4)


@pytest.mark.req("CST-08")
def test_what_is_left_of_a_discount() -> None:
    """Saves take 5 to 10 %, resumes 2 to 5 %: a source says 20 to 35 % is left of 30 to 50 %."""
    assert f.effective_saving(0.30, 0.10, 0.05) == pytest.approx(0.1915, abs=1e-9)
    assert f.effective_saving(0.30, 0.05, 0.02) == pytest.approx(0.2503, abs=1e-9)
    assert f.effective_saving(0.50, 0.10, 0.05) == pytest.approx(0.4225, abs=1e-9)
    assert f.effective_saving(0.50, 0.05, 0.02) == pytest.approx(0.4645, abs=1e-9)


@pytest.mark.req("CST-09")
def test_ten_interruptions_that_halve_a_saving() -> None:
    overhead = f.overhead_for(0.30, 0.15)
    assert overhead == pytest.approx(0.214, abs=5e-4)
    assert overhead / 10 == pytest.approx(0.021, abs=5e-4)
    assert f.effective_saving(0.30, overhead, 0) == pytest.approx(0.15)


@pytest.mark.req("CST-02")
@pytest.mark.parametrize(("month_d", "usd"), [(31, 77.42), (30, 80.0)])
def test_storage_by_the_month(month_d: float, usd: float) -> None:
    """1.5 TB for 16 days at $0.10 per GB and month: the case study's $78 is within."""
    assert round(f.storage(1500, 0.10, 16, month_d), 2) == usd
    assert f.storage(1500, 0.08, 16, 30) == pytest.approx(64)
    assert f.storage(1500, 0.12, 16, 30) == pytest.approx(96)


def test_break_even() -> None:
    """36 minutes lost each time."""
    assert f.break_even_mtti_h(0.6, 0.255) == pytest.approx(2.35, abs=0.005)
    assert f.break_even_mtti_h(0.6, 0.76) == pytest.approx(0.79, abs=0.005)
    assert f.break_even_mtti_h(0.6, 0.60) == pytest.approx(1.0)


def test_the_pause_that_loses_least() -> None:
    hazard, save = 0.0324, 0.01
    best = f.best_pause_h(hazard, save)

    def lost(pause: float) -> float:
        return save / pause + f.expected_loss(hazard, 0.2, pause, save)

    assert lost(best) < min(lost(best * 1.1), lost(best * 0.9))
    assert f.expected_loss(0.1, 0.2, 0.4, 0.1) == pytest.approx(0.05)


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


def test_spot_pays_until_its_overhead_eats_the_discount() -> None:
    assert f.spot_pays(11.92, 16.0, 0.25)
    assert not f.spot_pays(11.92, 16.0, 0.26)
    assert not f.spot_pays(0.01, 16.0, 1.0)


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
