"""Write small SVG pictures: escaped, self-contained, readable without colour."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from providers.clouds import CLOUDS

# Okabe and Ito's palette, which colour-blind eyes can distinguish too.
BLACK, GREY, PALE = "#222222", "#8a8a8a", "#e8e8e8"
ORANGE, SKY, GREEN, YELLOW = "#e69f00", "#56b4e9", "#009e73", "#f0e442"
BLUE, RED, PINK = "#0072b2", "#d55e00", "#cc79a7"
CLOUD_COLOURS = {name: cloud.colour for name, cloud in CLOUDS.items()}
OTHER_COLOURS = (PINK, BLUE, YELLOW)
FONT = "font-family='ui-sans-serif,system-ui,Helvetica,Arial,sans-serif'"


def cloud_colour(cloud: str) -> str:
    """Return the colour of a cloud make, the same in every picture."""
    return CLOUD_COLOURS.get(cloud, OTHER_COLOURS[len(cloud) % len(OTHER_COLOURS)])


def ticks(low: float, high: float, most: int = 8) -> list[float]:
    """Round numbers from `low` to `high`, at most `most` + 1 of them."""
    span = max(high - low, 1e-9)
    raw = span / most
    unit = 10 ** math.floor(math.log10(raw))
    step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= raw)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def text(
    x: float, y: float, words: str, *, size: int = 12, fill: str = BLACK, anchor: str = "start",
    weight: str = "normal",
) -> str:  # fmt: skip
    """Return one line of text with its baseline at y."""
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' fill='{fill}' text-anchor='{anchor}' "
        f"font-weight='{weight}' {FONT}>{escape(words)}</text>"
    )


def box(
    x: float, y: float, width: float, height: float, fill: str, *, title: str = "", extra: str = ""
) -> str:
    """A rectangle; `title` shows when the pointer rests on it."""
    tip = f"<title>{escape(title)}</title>" if title else ""
    size = f"width='{max(width, 0.5):.1f}' height='{height:.1f}'"
    return f"<rect x='{x:.1f}' y='{y:.1f}' {size} fill='{fill}' {extra}>{tip}</rect>"


def line(
    x1: float,
    y1: float,
    x2: float,
    y2: float,
    stroke: str = GREY,
    *,
    width: float = 1,
    dash: str = "",
) -> str:
    """A straight line."""
    dashes = f" stroke-dasharray='{dash}'" if dash else ""
    return (
        f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='{stroke}' "
        f"stroke-width='{width}'{dashes}/>"
    )


def curve(
    points: Sequence[tuple[float, float]], stroke: str, *, width: float = 1.6, dash: str = ""
) -> str:
    """A polyline through `points`."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashes = f" stroke-dasharray='{dash}'" if dash else ""
    return (
        f"<polyline points='{path}' fill='none' stroke='{stroke}' stroke-width='{width}'{dashes}/>"
    )


def triangle(x: float, y: float, fill: str, title: str) -> str:
    """A mark that points down at (x, y)."""
    points = f"{x:.1f},{y:.1f} {x - 6:.1f},{y - 10:.1f} {x + 6:.1f},{y - 10:.1f}"
    return f"<polygon points='{points}' fill='{fill}'><title>{escape(title)}</title></polygon>"


def cross(x: float, y: float, stroke: str, title: str) -> str:
    """A mark for a death at (x, y)."""
    arms = f"M{x - 5:.1f},{y - 5:.1f}l10,10m0,-10l-10,10"
    tip = f"<title>{escape(title)}</title>"
    return f"<path d='{arms}' stroke='{stroke}' stroke-width='2.5' fill='none'>{tip}</path>"


def dot(x: float, y: float, fill: str, title: str, radius: float = 3) -> str:
    """A small mark at (x, y)."""
    tip = f"<title>{escape(title)}</title>"
    return f"<circle cx='{x:.1f}' cy='{y:.1f}' r='{radius}' fill='{fill}'>{tip}</circle>"


def picture(width: int, height: int, parts: Sequence[str], title: str) -> str:
    """The whole document, on white, with a hatch pattern called `hatch` where one uses it."""
    hatch = (
        "<defs><pattern id='hatch' width='6' height='6' patternUnits='userSpaceOnUse' "
        "patternTransform='rotate(45)'><rect width='6' height='6' fill='#ffffff'/>"
        f"<rect width='2.5' height='6' fill='{GREY}'/></pattern></defs>"
    )
    drawn = "".join(parts)
    defs = hatch if "url(#hatch)" in drawn else ""  # an id is in a page once
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' "
        f"width='{width}' height='{height}' role='img' aria-label='{escape(title, quote=True)}'>"
        f"{defs}{box(0, 0, width, height, '#ffffff')}{drawn}</svg>\n"
    )
