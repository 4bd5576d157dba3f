"""Draw lines over steps or time, small, with their own scale: loss, speed, cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spotd.plots import svg

WIDTH, HEIGHT = 640, 240
LEFT, RIGHT, TOP, FOOT = 64, 16, 14, 44
Point = tuple[float, float | None]


@dataclass(frozen=True)
class Line:
    """A named line; a point without a value is a gap."""

    label: str
    colour: str
    points: Sequence[Point]
    dash: str = ""


def chart(
    title: str,
    lines: Sequence[Line],
    *,
    across: str,
    value: Callable[[float], str] = lambda number: f"{number:g}",
    from_zero: bool = False,
) -> str:
    """Return the lines as SVG; `across` names the horizontal axis, `value` words the vertical."""
    points = [(x, y) for line in lines for x, y in line.points if y is not None]
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    if from_zero:
        low = min(low, 0.0)
    if high <= low:
        high = low + (abs(low) or 1.0) / 10
    plot_w, plot_h = WIDTH - LEFT - RIGHT, HEIGHT - TOP - FOOT

    def place(x: float, y: float) -> tuple[float, float]:
        across_share = (x - left) / max(right - left, 1e-9)
        return LEFT + plot_w * across_share, TOP + plot_h * (high - y) / (high - low)

    parts: list[str] = []
    for tick in svg.ticks(left, right, 6):
        x, _ = place(tick, low)
        parts.append(svg.line(x, TOP, x, TOP + plot_h, svg.PALE))
        parts.append(svg.text(x, TOP + plot_h + 15, f"{tick:g}", size=11, anchor="middle"))
    for tick in svg.ticks(low, high, 4):
        _, y = place(left, tick)
        parts.append(svg.line(LEFT, y, LEFT + plot_w, y, svg.PALE))
        parts.append(svg.text(LEFT - 7, y + 4, value(tick), size=11, anchor="end"))
    for line in lines:
        parts += [
            svg.curve([place(x, y) for x, y in run], line.colour, width=1.8, dash=line.dash)
            for run in _runs(line.points)
        ]
    parts.append(svg.text(LEFT + plot_w, HEIGHT - 8, across, size=11, anchor="end"))
    return svg.picture(WIDTH, HEIGHT, [*parts, _key(lines)], title)


def _runs(points: Sequence[Point]) -> list[list[tuple[float, float]]]:
    """Return the stretches between gaps."""
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if y is None:
            runs.append([])
        else:
            runs[-1].append((x, y))
    return [run for run in runs if run]


def _key(lines: Sequence[Line]) -> str:
    """Return the colours by name, as far as there is room."""
    parts, x = [], float(LEFT)
    for line in lines:
        width = 26 + 6.2 * len(line.label)
        if x + width > WIDTH - 80:
            break
        parts.append(svg.line(x, HEIGHT - 12, x + 16, HEIGHT - 12, line.colour, width=3))
        parts.append(svg.text(x + 20, HEIGHT - 8, line.label, size=11))
        x += width
    return "".join(parts)
