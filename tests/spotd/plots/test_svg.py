"""Numbers in, well-formed markup out, whatever the words."""

from __future__ import annotations

import math
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotd.plots import svg

NS = "{http://www.w3.org/2000/svg}"
NASTY = "</svg><script>alert('&')</script>\""


def parse(*parts: str, title: str = "t") -> ET.Element:
    return ET.fromstring(svg.picture(100, 50, parts, title))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 8, [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        (0, 100, [0, 20, 40, 60, 80, 100]),
        (0, 95, [0, 20, 40, 60, 80]),
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (2.1, 3.9, [2.5, 3.0, 3.5]),
        (5, 5, [5]),
        (-10, 10, [-10, -5, 0, 5, 10]),
    ],
)
def test_ticks(low: float, high: float, expected: list[float]) -> None:
    assert svg.ticks(low, high) == expected


@given(
    st.floats(-1e9, 1e9),
    st.floats(1e-3, 1e9),
    st.integers(2, 20),
)
def test_ticks_are_few_round_and_inside(low: float, span: float, most: int) -> None:
    found = svg.ticks(low, low + span, most)
    assert len(found) <= most + 1
    slack = span * 1e-6 + abs(low) * 1e-9
    assert all(low - slack <= tick <= low + span + slack for tick in found)
    assert found == sorted(set(found))


def test_words_are_escaped_everywhere() -> None:
    root = parse(
        svg.text(1, 2, NASTY),
        svg.box(0, 0, 5, 5, svg.RED, title=NASTY),
        svg.triangle(3, 3, svg.RED, NASTY),
        svg.cross(3, 3, svg.RED, NASTY),
        svg.dot(3, 3, svg.RED, NASTY),
        title=NASTY,
    )
    assert root.get("aria-label") == NASTY
    texts = [element.text for element in root.iter() if element.text]
    assert texts.count(NASTY) == 5
    assert not list(root.iter(f"{NS}script"))


def test_shapes_have_their_numbers() -> None:
    root = parse(svg.line(1, 2, 3, 4, dash="3 3"), svg.curve([(0, 1), (2, 3.25)], svg.RED, width=2))
    (line,) = root.iter(f"{NS}line")
    assert [line.get(name) for name in ("x1", "y1", "x2", "y2")] == ["1.0", "2.0", "3.0", "4.0"]
    assert line.get("stroke-dasharray") == "3 3"
    (curve,) = root.iter(f"{NS}polyline")
    assert curve.get("points") == "0.0,1.0 2.0,3.2"


def test_a_box_without_width_can_still_be_seen() -> None:
    boxes = list(parse(svg.box(1, 1, 0, 5, svg.RED)).iter(f"{NS}rect"))
    assert boxes[-1].get("width") == "0.5"


def test_it_needs_nothing_from_elsewhere() -> None:
    drawn = svg.picture(10, 10, [svg.box(0, 0, 1, 1, "url(#hatch)")], "t")
    assert "id='hatch'" in drawn
    assert drawn.replace("http://www.w3.org/2000/svg", "").count("http") == 0


def test_each_cloud_has_its_colour_in_every_picture() -> None:
    colours = {cloud: svg.cloud_colour(cloud) for cloud in ("aws", "gcp", "azure")}
    assert len(set(colours.values())) == 3
    assert svg.cloud_colour("lambda") == svg.cloud_colour("lambda")
    assert svg.cloud_colour("lambda") not in colours.values()


def test_numbers_stay_finite() -> None:
    assert all(math.isfinite(tick) for tick in svg.ticks(0, 1e-12))
