"""Loss over steps: the attempts under the uninterrupted run."""

from __future__ import annotations

import math
from xml.etree import ElementTree as ET

import pytest

from spotd.plots import svg
from spotd.plots.loss_chart import FOOT, LEFT, RIGHT, TOP, Attempt, loss_picture

NS = "{http://www.w3.org/2000/svg}"
ATTEMPTS = (
    Attempt("g1 aws", "aws", [(1, 5.0), (2, 4.0), (3, 3.0)]),
    Attempt("g2 gcp", "gcp", [(3, 3.0), (4, 2.0), (5, 1.0)]),
)
REFERENCE = {step: 6.0 - step for step in range(1, 6)}


def drawn(*attempts: Attempt, reference: dict[int, float] | None = None) -> ET.Element:
    return ET.fromstring(loss_picture("loss", attempts, reference or {}))


def curves(root: ET.Element) -> list[tuple[str, list[tuple[float, float]]]]:
    found = []
    for line in root.iter(f"{NS}polyline"):
        points = [tuple(map(float, pair.split(","))) for pair in line.get("points", "").split()]
        found.append((line.get("stroke", ""), points))
    return found  # type: ignore[return-value]


def test_each_attempt_is_in_its_clouds_colour_and_the_reference_on_top() -> None:
    root = drawn(*ATTEMPTS, reference=REFERENCE)
    colours = [colour for colour, _ in curves(root)]
    assert colours == [svg.cloud_colour("aws"), svg.cloud_colour("gcp"), svg.BLACK]
    words = [text.text for text in root.iter(f"{NS}text")]
    assert {"g1 aws", "g2 gcp"} <= set(words)


def test_equal_losses_lie_on_each_other() -> None:
    (_, first), (_, second), (_, reference) = curves(drawn(*ATTEMPTS, reference=REFERENCE))
    assert first == reference[:3]
    assert second == reference[2:]


def test_the_plot_is_filled_and_down_is_less() -> None:
    _, points = curves(drawn(*ATTEMPTS, reference=REFERENCE))[-1]
    assert points[0][1] == TOP
    assert points[-1] == pytest.approx((1000 - RIGHT, 380 - FOOT), abs=0.1)
    assert points[0][0] == pytest.approx(LEFT + (1000 - LEFT - RIGHT) / 5, abs=0.1)


@pytest.mark.parametrize(
    "attempts",
    [
        (),
        (Attempt("g1", "aws", []),),
        (Attempt("g1", "aws", [(1, 2.0)]),),
        (Attempt("g1", "aws", [(0, 0.0)]), Attempt("g2", "gcp", [])),
    ],
)
def test_little_or_nothing_is_a_picture_too(attempts: tuple[Attempt, ...]) -> None:
    for _, points in curves(drawn(*attempts)):
        assert all(math.isfinite(value) for point in points for value in point)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_diverged_does_not_spoil_the_picture(bad: float) -> None:
    """NaN is a loss too; the rest of the line must stay readable."""
    root = drawn(Attempt("g1", "aws", [(1, 5.0), (2, bad), (3, 3.0)]), reference={1: 5.0, 3: 3.0})
    for _, points in curves(root):
        assert all(math.isfinite(value) for point in points for value in point)
