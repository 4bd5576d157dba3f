"""Exact intervals against tables and against sums that are exact by themselves."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotd.history.intervals import beta_below, gamma_below, quantile, rate, share
from tests.fixtures.examples import examples


@pytest.mark.parametrize(
    ("count", "low", "high"),
    # Quantiles of chi squared with 2n and 2n + 2 degrees of freedom, halved, as printed in tables.
    [
        (0, 0.0, 2.9957),
        (1, 0.0513, 4.7439),
        (2, 0.3554, 6.2958),
        (7, 3.2853, 13.1481),
        (9, 4.6952, 15.7052),
    ],
)
def test_a_rate_has_the_interval_of_the_tables(count: int, low: float, high: float) -> None:
    result = rate(count, 1.0)
    assert result is not None
    assert (result.low, result.high) == pytest.approx((low, high), abs=6e-5)


@pytest.mark.req("PRE-15")
def test_the_case_study() -> None:
    """7 in 216 h, and 9 in 288 h of both phases: to three digits."""
    result = rate(7, 216.0)
    assert result is not None
    assert f"{result.middle:.3g}" == "0.0324"
    assert f"{1 / result.middle:.3g}" == "30.9"
    assert result.low == pytest.approx(3.2853 / 216, rel=1e-4)
    both = rate(9, 288.0)
    assert both is not None
    assert f"{1 / both.middle:.3g}" == "32"


def test_no_rate_without_exposure() -> None:
    assert rate(0, 0.0) is None
    assert share(0, 0) is None


@pytest.mark.parametrize(
    ("count", "cases", "low", "high"),
    # Clopper and Pearson, 90 %: (1 - 0.05^(1/n)) for none of n, and tables for 1 of 10 and 5 of 10.
    [
        (0, 10, 0.0, 0.25887),
        (1, 10, 0.00512, 0.39416),
        (5, 10, 0.22244, 0.77756),
        (10, 10, 0.74113, 1.0),
    ],
)
def test_a_share_has_the_interval_of_the_tables(
    count: int, cases: int, low: float, high: float
) -> None:
    result = share(count, cases)
    assert result is not None
    assert (result.low, result.high) == pytest.approx((low, high), abs=6e-6)


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(1, 60), st.floats(0.01, 120))
def test_gamma_is_the_poisson_sum(n: int, x: float) -> None:
    terms = (math.exp(k * math.log(x) - x - math.lgamma(k + 1)) for k in range(n))
    assert gamma_below(n, x) == pytest.approx(1 - math.fsum(terms), abs=1e-10)


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(1, 30), st.integers(1, 30), st.floats(0.001, 0.999))
def test_beta_is_the_binomial_sum(a: int, b: int, x: float) -> None:
    n = a + b - 1
    tail = math.fsum(math.comb(n, k) * x**k * (1 - x) ** (n - k) for k in range(a, n + 1))
    assert beta_below(a, b, x) == pytest.approx(tail, abs=1e-10)


def test_large_counts_are_near_the_normal() -> None:
    result = rate(10_000, 1.0)
    assert result is not None
    assert result.high == pytest.approx(10_000 + 1.645 * 100, rel=1e-3)
    many = share(5_000, 10_000)
    assert many is not None
    assert many.high == pytest.approx(0.5 + 1.645 * 0.005, rel=1e-3)


def test_small_numbers_say_so() -> None:
    four, five = rate(4, 9.0), rate(5, 9.0)
    assert four is not None
    assert five is not None
    assert (four.few, five.few) == (True, False)


def test_quantiles_lie_between_neighbours() -> None:
    assert quantile([], 0.5) is None
    assert quantile([3.0], 0.1) == 3.0
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert quantile([float(n) for n in range(11)], 0.1) == 1.0
