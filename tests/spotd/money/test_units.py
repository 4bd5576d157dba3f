"""Hours of nodes and of GPUs do not mix; money is rounded once and shared out without a rest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotd.money.units import GpuHours, NodeHours, cost_microusd, per_hour, share_out
from tests.spotd.money.build import H


@pytest.mark.req("CST-04")
def test_node_hours_are_no_gpu_hours() -> None:
    node = NodeHours(312 * H)
    assert node.of_gpus(8) == GpuHours(2496 * H)
    assert (node + node).hours == 624
    assert (GpuHours(H) + GpuHours(H)).hours == 2
    with pytest.raises(TypeError):
        node + node.of_gpus(8)  # type: ignore[operator]
    with pytest.raises(TypeError):
        node.of_gpus(8) + node  # type: ignore[operator]


@pytest.mark.req("CST-05")
def test_by_the_hour() -> None:
    """$3,895 for 2,496 GPU-hours; 16.00 is the rate of a node with eight."""
    assert per_hour(3_894_960_000, GpuHours(2496 * H)) == 1_560_481
    assert per_hour(3_816_960_000, GpuHours(2496 * H)) == 1_529_231
    assert per_hour(11_200_000_000, GpuHours(2496 * H)) == 4_487_179
    assert per_hour(1, NodeHours()) is None


@given(st.integers(0, 10**12), st.lists(st.integers(0, 10**9), min_size=1, max_size=7))
def test_what_is_shared_out_adds_up(total: int, weights: list[int]) -> None:
    parts = share_out(total, weights)
    assert sum(parts) == total
    if sum(weights):
        exact = [total * weight / sum(weights) for weight in weights]
        assert all(abs(a - b) <= 1 for a, b in zip(parts, exact, strict=True))


def test_nothing_is_shared_by_nobody() -> None:
    assert share_out(5, []) == []
    assert share_out(5, [0, 0]) == [5, 0]


def test_cost() -> None:
    assert cost_microusd(1, 0, H // 2) == 1
    assert cost_microusd(1, 0, H // 2 - 1) == 0
    assert cost_microusd(5, 10, 3) == 0
