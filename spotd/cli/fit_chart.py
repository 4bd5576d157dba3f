"""SVG chart of `spotctl rightsize`: the parts of one GPU's memory against the card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spotd.plots import svg

_WIDTH, _LEFT, _RIGHT, _ROW, _HEAD = 800, 130, 170, 34, 74
_COLOURS = {
    "state": svg.BLUE, "gather": svg.SKY, "activations": svg.ORANGE, "logits": svg.YELLOW,
    "context": svg.GREY,
}  # fmt: skip


def picture(title: str, items: Sequence[Mapping[str, Any]]) -> str:
    """Return an SVG, 800 pixels wide, with a bar of the memory of one GPU for each item.

    `items` are as `size_data` returns them, in GiB. A mark shows where the card ends.
    """
    totals = [sum(item["parts_gib"].values()) for item in items]
    max_gib = max([*totals, *(item["card_gib"] for item in items), 1.0])
    scale = (_WIDTH - _LEFT - _RIGHT) / max_gib
    height = _HEAD + _ROW * len(items) + 30
    parts = [svg.text(16, 26, title, size=15, weight="600"), *_legend()]
    for tick in svg.ticks(0, max_gib):
        x = _LEFT + tick * scale
        parts.append(svg.line(x, _HEAD - 8, x, height - 26, svg.PALE))
        parts.append(svg.text(x, height - 10, f"{tick:g} GiB", size=11, anchor="middle"))
    for number, item in enumerate(items):
        parts += _row(item, _HEAD + _ROW * number, scale)
    return svg.picture(_WIDTH, height, parts, title)


def _legend() -> list[str]:
    drawn, x = [], float(_LEFT)
    for name, colour in _COLOURS.items():
        drawn += [svg.box(x, 40, 12, 12, colour), svg.text(x + 17, 50, name, size=11)]
        x += 100
    return [*drawn, svg.line(x, 38, x, 54, svg.BLACK, width=3), svg.text(x + 7, 50, "the card")]


def _row(item: Mapping[str, Any], y: float, scale: float) -> list[str]:
    drawn = [svg.text(16, y + 16, f"{item['gpus']} x {item['accelerator']}", weight="600")]
    x = float(_LEFT)
    for name, colour in _COLOURS.items():
        gib = item["parts_gib"][name]
        drawn.append(svg.box(x, y, gib * scale, 22, colour, title=f"{name}: {gib:.1f} GiB"))
        x += gib * scale
    end = _LEFT + item["card_gib"] * scale
    drawn.append(svg.line(end, y - 4, end, y + 26, svg.BLACK, width=3))
    label = f"{item['verdict']}, {item['gib_per_gpu']:.0f} of {item['card_gib']:g}"
    return [*drawn, svg.text(_WIDTH - 12, y + 16, label, size=12, anchor="end")]
