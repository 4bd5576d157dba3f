"""GPUs that are paid for and not used: the bound, by hand."""

from __future__ import annotations

import pytest

from spotd.money.idle import Idle, IdlePolicy, Window, idle_gpus

HOUR = IdlePolicy()


def windows(
    gpu: float, node_id: str = "a", count: int = 10, usd_per_h: float = 20.0
) -> list[Window]:
    """As many of five minutes."""
    return [Window(node_id, 300.0, gpu, usd_per_h)] * count


def test_the_dollars_by_hand() -> None:
    """50 of 60 min at 4 %: 0.96 * 50/60 h * $20 = $16, and $19.20 an hour from now on."""
    result = idle_gpus(windows(0.04), HOUR)
    assert result == Idle(pytest.approx(0.04), pytest.approx(16.0), pytest.approx(19.2))


@pytest.mark.parametrize(
    ("seen", "idle"),
    [
        (windows(0.0999), True),
        (windows(0.1), False),
        (windows(0.0, count=9), False),
        ([*windows(0.0), *windows(0.19, "b")], True),
        ([*windows(0.0), *windows(0.21, "b")], False),
        ([*windows(0.0), *windows(0.9, "b", 9)], True),
        ([], False),
    ],
    ids=[
        "below",
        "at the bound",
        "too little measured",
        "the mean of two",
        "which works",
        "one that just began",
        "nobody reports",
    ],
)
def test_who_is_idle(seen: list[Window], idle: bool) -> None:
    assert (idle_gpus(seen, HOUR) is not None) is idle
