"""Pauses grow, and stop growing."""

from __future__ import annotations

from itertools import pairwise

import pytest

from spotd.planner.core.backoff import CAP_S, backoff_s, effect_backoff_s


@pytest.mark.parametrize(
    ("failures", "pause_s"),
    [(0, 5.0), (1, 5.0), (2, 10.0), (3, 20.0), (6, 160.0), (7, 300.0), (10_000, 300.0)],
)
def test_after_a_crash(failures: int, pause_s: float) -> None:
    assert backoff_s(failures) == pause_s


@pytest.mark.parametrize(
    ("failures", "pause_s"),
    [(0, 0.25), (1, 0.25), (2, 0.5), (3, 1.0), (6, 8.0), (7, 15.0), (10_000, 15.0)],
)
def test_after_a_call_that_failed(failures: int, pause_s: float) -> None:
    assert effect_backoff_s(failures) == pause_s


def test_they_never_shrink() -> None:
    for pause in (backoff_s, effect_backoff_s):
        pauses = [pause(failures) for failures in range(40)]
        assert all(one <= next_ for one, next_ in pairwise(pauses))
        assert max(pauses) <= CAP_S
