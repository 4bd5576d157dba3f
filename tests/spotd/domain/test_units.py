"""Durations as text."""

from __future__ import annotations

import pytest

from spotd.domain.units import format_seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (1.24, "1.2 s"), (4, "4 s"), (59, "59 s"), (119.6, "120 s"), (121, "2 min")]
    + [(7199, "120 min"), (7300, "2.0 h")],
)
def test_a_duration_has_the_digits_that_mean_something(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
