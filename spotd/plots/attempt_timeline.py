"""Draw a job's attempts: a row per machine, time to the right, who trained, what was lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spotd.plots import svg

WIDTH, LEFT, RIGHT, TOP, ROW, FOOT = 1000, 190, 24, 58, 46, 52
REFUSED = "zombie refused"
REFUSED_ROOM = 100  # what these words take beside their mark
_UNITS = (("d", 86_400.0), ("h", 3600.0), ("min", 60.0))  # of the scale; shorter stories: seconds
SECONDS_UP_TO_S = 600.0
_FEWEST = 3  # of a unit, or a smaller one is taken


@dataclass(frozen=True)
class Span:
    """One machine of the job.

    Times in seconds from the job's start; None if that did not happen.

    `asked_s` is the launch request, `first_s` and `last_s` the first and last step, `ended_s` when
    it was given back or lost, `notice_s` when a notice was published. `lost_steps` were trained and
    are gone.
    """

    label: str
    cloud: str
    asked_s: float
    first_s: float | None
    last_s: float | None
    ended_s: float
    notice_s: float | None = None
    died: bool = False
    lost_steps: int = 0
    checkpoints_s: tuple[float, ...] = ()
    refused_s: float | None = None
    note: str = ""


def ribbon(title: str, spans: Sequence[Span]) -> str:
    """The picture as SVG text."""
    end_s = max((span.ended_s for span in spans), default=1.0)
    end_s = max([end_s, *[span.refused_s for span in spans if span.refused_s is not None]])
    plot = WIDTH - LEFT - RIGHT
    height = TOP + ROW * len(spans) + FOOT

    def at(seconds: float) -> float:
        return LEFT + plot * seconds / end_s

    parts = [svg.text(16, 26, title, size=16, weight="600")]
    unit, unit_s = next((one for one in _UNITS if end_s >= _FEWEST * one[1]), ("s", 1.0))
    if end_s < SECONDS_UP_TO_S:
        unit, unit_s = "s", 1.0
    for tick in svg.ticks(0, end_s / unit_s):
        x = at(tick * unit_s)
        parts.append(svg.line(x, TOP - 14, x, height - FOOT + 4, svg.PALE))
        words = f"{tick:g} {unit}"
        parts.append(svg.text(x, height - FOOT + 20, words, size=11, anchor="middle"))
    for number, span in enumerate(spans):
        parts += _row(span, TOP + ROW * number, at)
    parts.append(_legend(height - 10))
    return svg.picture(WIDTH, height, parts, title)


def _row(span: Span, y: float, at: Callable[[float], float]) -> list[str]:
    colour = svg.cloud_colour(span.cloud)
    middle = y + ROW / 2 - 6
    first_s = span.first_s if span.first_s is not None else span.ended_s
    parts = [
        svg.text(16, middle + 2, span.label, size=12, weight="600"),
        svg.text(16, middle + 17, span.note, size=10, fill=svg.GREY),
        svg.box(at(span.asked_s), y + 8, at(first_s) - at(span.asked_s), 18, colour,
                extra="fill-opacity='0.28'", title=f"getting ready {first_s - span.asked_s:.1f} s"),
    ]  # fmt: skip
    if span.first_s is not None and span.last_s is not None:
        width = at(span.last_s) - at(span.first_s)
        title = f"training {span.last_s - span.first_s:.1f} s"
        parts.append(svg.box(at(span.first_s), y + 4, width, 26, colour, title=title))
        if span.lost_steps:
            saved_s = max((c for c in span.checkpoints_s if c <= span.last_s), default=span.first_s)
            title = f"{span.lost_steps} steps lost"
            lost = at(span.last_s) - at(saved_s)
            parts.append(svg.box(at(saved_s), y + 4, lost, 26, "url(#hatch)", title=title))
    parts += [
        svg.dot(at(when_s), y + 35, svg.BLUE, f"checkpoint at {when_s:.1f} s", 2.2)
        for when_s in span.checkpoints_s
    ]
    if span.notice_s is not None:
        parts.append(
            svg.triangle(at(span.notice_s), y + 3, svg.RED, f"notice at {span.notice_s:.1f} s")
        )
    if span.died:
        parts.append(
            svg.cross(at(span.last_s or span.ended_s), y + 17, svg.RED, "died without notice")
        )
    if span.refused_s is not None:
        x = at(span.refused_s)
        side, anchor = (9, "start") if x + REFUSED_ROOM < WIDTH else (-9, "end")
        parts.append(svg.cross(x, y + 17, svg.PINK, "zombie's commit refused"))
        parts.append(svg.text(x + side, y + 21, REFUSED, size=10, fill=svg.PINK, anchor=anchor))
    return parts


def _legend(y: float) -> str:
    items = [
        (svg.box(0, -10, 16, 10, svg.GREY, extra="fill-opacity='0.28'"), "getting ready"),
        (svg.box(0, -10, 16, 10, svg.GREY), "training"),
        (svg.box(0, -10, 16, 10, "url(#hatch)"), "steps lost"),
        (svg.triangle(8, 0, svg.RED, "notice"), "notice"),
        (svg.cross(8, -5, svg.RED, "death"), "death without notice"),
        (svg.cross(8, -5, svg.PINK, "refusal"), REFUSED),
        (svg.dot(8, -4, svg.BLUE, "checkpoint"), "checkpoint"),
    ]
    parts, x = [], float(LEFT)
    for mark, words in items:
        parts.append(f"<g transform='translate({x:.0f},{y:.0f})'>{mark}</g>")
        parts.append(svg.text(x + 22, y, words, size=11))
        x += 40 + 6.4 * len(words)
    return "".join(parts)
