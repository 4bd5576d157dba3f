"""Node hours and GPU hours as types that cannot be mixed, and money by the hour."""

from __future__ import annotations

from dataclasses import dataclass

from spotd.domain.units import US_PER_H


@dataclass(frozen=True, order=True)
class NodeHours:
    """Time of machines, in microseconds of one machine."""

    us: int = 0

    def __add__(self, other: NodeHours) -> NodeHours:
        """Add node hours. Raises TypeError for GPU hours, which mypy refuses as well."""
        if not isinstance(other, NodeHours):
            return NotImplemented
        return NodeHours(self.us + other.us)

    @property
    def hours(self) -> float:
        return self.us / US_PER_H

    def of_gpus(self, count: int) -> GpuHours:
        """Return the GPU hours of machines with `count` GPUs."""
        return GpuHours(self.us * count)


@dataclass(frozen=True, order=True)
class GpuHours:
    """Time of GPUs, in microseconds of one GPU."""

    us: int = 0

    def __add__(self, other: GpuHours) -> GpuHours:
        """Add GPU hours. Raises TypeError for node hours, which mypy refuses as well."""
        if not isinstance(other, GpuHours):
            return NotImplemented
        return GpuHours(self.us + other.us)

    @property
    def hours(self) -> float:
        return self.us / US_PER_H


def per_hour(microusd: int, hours: NodeHours | GpuHours) -> int | None:
    """Return micro-USD per hour, rounded half up; None without any hour."""
    return (2 * microusd * US_PER_H + hours.us) // (2 * hours.us) if hours.us else None


def cost_microusd(rate_microusd_per_h: int, start_us: int, end_us: int) -> int:
    """Return the cost of a time at that rate, rounded half up: the only place that rounds money."""
    spent = rate_microusd_per_h * max(end_us - start_us, 0)
    return (spent + US_PER_H // 2) // US_PER_H


def share_out(total: int, weights: list[int]) -> list[int]:
    """Divide `total` in proportion to `weights` by the largest remainder method.

    The parts are integers and add up exactly. If all weights are 0 the first part is all of it.
    """
    total_weight = sum(weights)
    if not weights:
        return []
    if not total_weight:
        return [total, *[0] * (len(weights) - 1)]
    parts = [total * weight // total_weight for weight in weights]
    order = sorted(range(len(weights)), key=lambda at: (-(total * weights[at] % total_weight), at))
    for at in order[: total - sum(parts)]:
        parts[at] += 1
    return parts


def usd(microusd: int) -> float:
    """Convert micro-USD to dollars, exact to the micro-dollar."""
    return round(microusd / 1e6, 6)
