"""Tests of the one formatter of dollars."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.dollars import format_microusd, format_usd
from spotd.base.text import money


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        (None, "-"),
        (0, "$0.00"),
        (-0.0, "$0.00"),
        (0.000_000_1, "<$0.0001"),
        (0.000_099, "<$0.0001"),
        (0.0001, "$0.0001"),
        (0.0042, "$0.0042"),
        (0.1, "$0.1000"),
        (0.5, "$0.5000"),
        (0.9999, "$0.9999"),
        (0.999_96, "$1.00"),
        (1, "$1.00"),
        (1.234, "$1.23"),
        (999.999, "$1,000.00"),
        (1234.5, "$1,234.50"),
        (-0.000_01, ">-$0.0001"),
        (-0.25, "-$0.2500"),
        (-1234.5, "-$1,234.50"),
    ],
)
def test_amounts(usd: float | None, text: str) -> None:
    assert format_usd(usd) == money(usd) == text


def test_signed_amounts() -> None:
    assert format_usd(0.25, signed=True) == "+$0.2500"
    assert format_usd(-2, signed=True) == "-$2.00"
    assert format_usd(0, signed=True) == "$0.00"


def test_micro_usd() -> None:
    assert format_microusd(None) == "-"
    assert format_microusd(983_200) == "$0.9832"
    assert format_microusd(-2_500_000) == "-$2.50"
    assert format_microusd(50) == "<$0.0001"


@given(st.floats(-1e9, 1e9))
def test_no_amount_reads_as_nothing_or_as_another_sign(usd: float) -> None:
    text = format_usd(usd)
    assert (text == "$0.00") == (usd == 0)
    assert ("-" in text) == (usd < 0)
