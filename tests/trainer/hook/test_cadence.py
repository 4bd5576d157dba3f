"""The interval between saves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.hook.spotd_hook.cadence import (
    ASSUMED_MTBF_S,
    MAX_INTERVAL_S,
    MIN_INTERVAL_S,
    CheckpointTerms,
    interval_s,
    read_terms,
)

HOUR_S = 3600.0


@pytest.mark.parametrize(
    ("stall_s", "upload_s", "mtbf_s", "expected_s"),
    [
        # The figures of the model: stall 0.2 to 0.5 s, and 3.5 s; MTBF of 2 and 8 hours.
        (0.2, 12, 2 * HOUR_S, 53.7),
        (0.5, 12, 2 * HOUR_S, 84.9),
        (0.2, 12, 8 * HOUR_S, 107.3),
        (0.5, 12, 8 * HOUR_S, 169.7),
        (3.5, 53, 2 * HOUR_S, 224.5),
        (3.5, 53, 8 * HOUR_S, 449.0),
        (0.2, 70, 2 * HOUR_S, 77.0),  # the upload is what limits it
        (0.001, 0.01, 2 * HOUR_S, MIN_INTERVAL_S),
        (60, 60, 200 * HOUR_S, MAX_INTERVAL_S),
        (60, 7200, 200 * HOUR_S, 7920),  # never before the last one is durable
    ],
)
def test_the_interval(stall_s: float, upload_s: float, mtbf_s: float, expected_s: float) -> None:
    assert interval_s(stall_s, upload_s, mtbf_s) == pytest.approx(expected_s, rel=0.001)


def test_what_is_paid_for_a_save_makes_saves_rarer() -> None:
    """Sending 420 GB out of a cloud at $0.09/GB costs as much as 57 minutes of a node at $40/h."""
    node_usd_per_s, size = 40 / HOUR_S, 420 * 10**9
    terms = CheckpointTerms(mtbf_s=8 * HOUR_S, gb_costs_s=0.09 / node_usd_per_s)
    costs_s = terms.save_costs_s(size, 0)
    assert costs_s == pytest.approx(37.8 / node_usd_per_s)
    assert interval_s(0.3, 53, terms.mtbf_s, costs_s) == MAX_INTERVAL_S
    # Writes alone, at $5 a million: in parts of 128 MiB, and of 16 MiB.
    puts = CheckpointTerms(mtbf_s=8 * HOUR_S, put_costs_s=5e-6 / node_usd_per_s)
    few, many = (puts.save_costs_s(size, count) for count in (3_300, 26_000))
    assert interval_s(0.3, 53, puts.mtbf_s) == pytest.approx(131.5, rel=0.001)
    assert interval_s(0.3, 53, puts.mtbf_s, few) == pytest.approx(321, rel=0.01)
    assert interval_s(0.3, 53, puts.mtbf_s, many) == pytest.approx(830, rel=0.01)


@given(st.floats(0.01, 100), st.floats(0, 50), st.floats(1000, 1e6), st.floats(0, 100))
def test_no_other_interval_loses_less(
    stall_s: float, upload_s: float, mtbf_s: float, costs_s: float
) -> None:
    def loss_rate(every_s: float) -> float:
        return (stall_s + costs_s) / every_s + every_s / (2 * mtbf_s)

    least_s = max(MIN_INTERVAL_S, 1.1 * upload_s)
    best_s = interval_s(stall_s, upload_s, mtbf_s, costs_s)
    for other_s in (least_s, best_s * 0.9, best_s * 1.1, MAX_INTERVAL_S):
        if least_s <= other_s <= MAX_INTERVAL_S:
            assert loss_rate(best_s) <= loss_rate(other_s) + 1e-9


def test_the_terms_come_by_the_environment() -> None:
    env = {"SPOTD_MTBF_S": "7200", "SPOTD_GB_COSTS_S": "8.1", "SPOTD_PUT_COSTS_S": "0.0005"}
    assert read_terms(env) == CheckpointTerms(7200.0, 8.1, 0.0005)
    assert read_terms({"SPOTD_MTBF_S": "0"}) == CheckpointTerms(ASSUMED_MTBF_S)
    assert read_terms({}) == CheckpointTerms()
