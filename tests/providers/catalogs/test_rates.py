"""Interruption rates claimed by guides, in one unit: losses per machine-hour."""

from __future__ import annotations

import pytest

from providers.catalogs.rates import (
    NO_SPOT,
    PERIODS_H,
    PriceFileError,
    per_hour,
    rate_claims,
    read_rates,
)
from spotd.history.completion_interval import Measurements

MONTH, DAY = PERIODS_H["month"], PERIODS_H["day"]


@pytest.mark.parametrize(
    ("share", "period_h", "rate", "each"),
    [
        pytest.param(0.05, MONTH, "7.03e-05", None, marks=pytest.mark.req("PRE-13")),
        pytest.param(0.20, MONTH, "0.000306", None, marks=pytest.mark.req("PRE-13")),
        pytest.param(0.05, DAY, "0.00214", "19.5", marks=pytest.mark.req("PRE-14")),
        (0.0, DAY, "0", None),
    ],
)
def test_a_share_within_a_period(share: float, period_h: float, rate: str, each: str) -> None:
    result = per_hour(share, period_h)
    assert f"{result:.3g}" == rate
    if each:
        assert f"{1 / result / 24:.3g}" == each, "days"


@pytest.mark.parametrize(("share", "period_h"), [(1.0, 24.0), (-0.1, 24.0), (0.1, 0.0)])
def test_what_is_no_rate(share: float, period_h: float) -> None:
    with pytest.raises(ValueError, match="is not a rate"):
        per_hour(share, period_h)


@pytest.mark.req("PRE-13", "PRE-14")
def test_each_claim_has_its_unit_and_the_same_one_as_all() -> None:
    result = {(rate_claim.source_name, rate_claim.what): rate_claim for rate_claim in rate_claims()}
    old = result["provider-guide", "T4 and A10, below"]
    new = result["provider-guide", "H100 at peak, above"]
    assert (old.claimed, new.claimed) == ("5 % a month", "20 % a month")
    assert (old.high, new.high) == (per_hour(0.05, MONTH), per_hour(0.20, MONTH))
    daily = {name: result["spot-guide", name] for name in ("lambda", "runpod", "vast")}
    assert {name: one.claimed for name, one in daily.items()} == {
        "lambda": "3 to 5 % a day", "runpod": "6 to 8 % a day", "vast": "8 to 15 % a day",
    }  # fmt: skip
    assert [daily["lambda"].low, daily["vast"].high] == [per_hour(0.03, DAY), per_hour(0.15, DAY)]
    assert [item.note for item in daily.values()] == [NO_SPOT, "", ""]
    seen = result["case-study", "training"]
    assert round(seen.high / old.high) == 461, "the same word, 461 times as often"


@pytest.mark.req("PRE-14")
def test_what_is_seen_outweighs_what_was_believed() -> None:
    """A prior of 5 % a day, and losses as often as in the case study: one each 30.9 h."""
    prior, seen = per_hour(0.05, DAY), 7 / 216
    rates = [
        Measurements(1.0, [1.0], [1.0], [1.0], 1, losses, losses / seen, 1 / prior).hazard
        for losses in (0, 1, 7, 70, 700)
    ]
    assert rates[0] == pytest.approx(prior), "nothing seen: what was believed"
    assert rates == sorted(rates)
    assert rates[-1] == pytest.approx(seen, rel=0.02)


GOOD = '[a]\ndated = 2026-11-24\nsource = "x"\n'


@pytest.mark.parametrize(
    "lines",
    [
        'share = { "T4" = [0.05, 0.05] }',
        'period = "year"\nshare = { "T4" = [0.05, 0.05] }',
        'period = "day"\nshare = { "T4" = [0.08, 0.05] }',
        'period = "day"\nshare = { "T4" = [0.5, 1.0] }',
        'period = "day"\nshare = { "T4" = [0.5] }',
        'period = "day"\nshare = { "T4" = [true, 0.5] }',
        'count = { "T4" = [1, 0] }',
        'count = { "T4" = [-1, 5] }',
        "rate = 1",
    ],
)
def test_what_the_file_may_not_say(lines: str) -> None:
    with pytest.raises(PriceFileError, match=r"^a\."):
        read_rates(f"{GOOD}{lines}\n")
    (row,) = read_rates(f'{GOOD}count = {{ "T4" = [1, 4] }}\n')
    assert (row.low, row.claimed) == (0.25, "1 in 4 h")
