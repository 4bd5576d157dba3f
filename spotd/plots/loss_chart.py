"""Draw the loss over steps across preemptions: one line if nothing was lost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spotd.plots import svg

WIDTH, HEIGHT = 1000, 380
LEFT, RIGHT, TOP, FOOT = 64, 24, 56, 52


@dataclass(frozen=True)
class Attempt:
    """The training of one generation: label, cloud make, and (step, loss) in order."""

    label: str
    cloud: str
    losses: Sequence[tuple[int, float]]


def loss_picture(
    title: str,
    attempts: Sequence[Attempt],
    reference: Mapping[int, float],
) -> str:
    """Draw the attempts in their clouds' colours, and the uninterrupted run over them.

    The uninterrupted run is thin and black. Where the colours lie under it, the resumed losses
    equal it. NaN and infinity, as in divergence, are gaps.
    """
    attempts = [replace(attempt, losses=_finite(attempt.losses)) for attempt in attempts]
    reference = dict(_finite(list(reference.items())))
    points = [point for attempt in attempts for point in attempt.losses] + list(reference.items())
    if not points:
        return svg.picture(WIDTH, HEIGHT, [svg.text(16, 26, title, size=16)], title)
    last = max(step for step, _ in points)
    high, low = max(loss for _, loss in points), min(loss for _, loss in points)
    plot_w, plot_h = WIDTH - LEFT - RIGHT, HEIGHT - TOP - FOOT

    def place(step: float, loss: float) -> tuple[float, float]:
        share = (high - loss) / max(high - low, 1e-9)
        return LEFT + plot_w * step / max(last, 1), TOP + plot_h * share

    parts = [svg.text(16, 26, title, size=16, weight="600")]
    for tick in svg.ticks(0, last):
        x, _ = place(tick, low)
        parts.append(svg.line(x, TOP, x, TOP + plot_h, svg.PALE))
        parts.append(svg.text(x, TOP + plot_h + 18, f"{tick:g}", size=11, anchor="middle"))
    for tick in svg.ticks(low, high, 5):
        _, y = place(0, tick)
        parts.append(svg.line(LEFT, y, LEFT + plot_w, y, svg.PALE))
        parts.append(svg.text(LEFT - 8, y + 4, f"{tick:g}", size=11, anchor="end"))
    for attempt in attempts:
        if not attempt.losses:
            continue
        colour = svg.cloud_colour(attempt.cloud)
        parts.append(svg.curve([place(s, v) for s, v in attempt.losses], colour, width=6))
        x, _ = place(attempt.losses[0][0], low)
        parts.append(svg.line(x, TOP - 8, x, TOP + plot_h, colour, dash="3 3"))
        parts.append(svg.text(x + 4, TOP - 2, attempt.label, size=11, fill=svg.BLACK))
    if reference:
        parts.append(
            svg.curve([place(s, v) for s, v in sorted(reference.items())], svg.BLACK, width=1.2)
        )
    parts.append(svg.text(LEFT + plot_w, HEIGHT - 10, "step", size=11, anchor="end"))
    key = "coloured: the preempted job, by cloud; thin black: the same job uninterrupted"
    parts.append(svg.text(LEFT, HEIGHT - 10, key, size=11))
    return svg.picture(WIDTH, HEIGHT, parts, title)


def _finite(losses: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    return [(step, loss) for step, loss in losses if math.isfinite(loss)]
