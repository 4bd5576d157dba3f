"""The attempt ribbon says who trained when, and hides no loss."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from spotd.plots import svg
from spotd.plots.attempt_timeline import LEFT, RIGHT, Span, ribbon

NS = "{http://www.w3.org/2000/svg}"
FIRST = Span("g1 aws", "aws", 0.0, 10.0, 60.0, 70.0, checkpoints_s=(20.0, 40.0), note="local")
SECOND = Span("g2 gcp", "gcp", 55.0, 62.0, 100.0, 100.0)


def drawn(*spans: Span) -> ET.Element:
    return ET.fromstring(ribbon("a job", spans))


def titles(root: ET.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{NS}title")]


def bars(root: ET.Element, title: str) -> list[ET.Element]:
    found = [rect for rect in root.iter(f"{NS}rect") if rect.findtext(f"{NS}title") == title]
    assert found, titles(root)
    return found


def at(seconds: float, end_s: float = 100.0) -> float:
    return LEFT + (1000 - LEFT - RIGHT) * seconds / end_s


def test_a_machine_is_a_row_with_its_times_in_place() -> None:
    root = drawn(FIRST, SECOND)
    (ready,) = bars(root, "getting ready 10.0 s")
    assert (float(ready.get("x", 0)), float(ready.get("width", 0))) == pytest.approx(
        (at(0), at(10) - at(0)), abs=0.1
    )
    (training,) = bars(root, "training 50.0 s")
    assert float(training.get("x", 0)) == pytest.approx(at(10), abs=0.1)
    assert training.get("fill") == svg.cloud_colour("aws")
    words = [text.text for text in root.iter(f"{NS}text")]
    assert {"a job", "g1 aws", "g2 gcp", "local"} <= set(words)
    assert [title for title in titles(root) if title.startswith("checkpoint at")] == [
        "checkpoint at 20.0 s",
        "checkpoint at 40.0 s",
    ]


def test_lost_steps_are_hatched_from_the_last_checkpoint_on() -> None:
    (lost,) = bars(drawn(replace(FIRST, lost_steps=7), SECOND), "7 steps lost")
    assert lost.get("fill") == "url(#hatch)"
    assert float(lost.get("x", 0)) == pytest.approx(at(40), abs=0.1)
    assert float(lost.get("width", 0)) == pytest.approx(at(60) - at(40), abs=0.1)


def test_without_a_checkpoint_everything_since_the_first_step_is_lost() -> None:
    (lost,) = bars(drawn(replace(FIRST, lost_steps=7, checkpoints_s=()), SECOND), "7 steps lost")
    assert float(lost.get("x", 0)) == pytest.approx(at(10), abs=0.1)


@pytest.mark.parametrize(
    ("fields", "title"),
    [
        ({"notice_s": 50.0}, "notice at 50.0 s"),
        ({"died": True}, "died without notice"),
        ({"refused_s": 95.0}, "zombie's commit refused"),
    ],
)
def test_what_happened_is_marked_only_where_it_did(fields: dict[str, float], title: str) -> None:
    assert title in titles(drawn(replace(FIRST, **fields), SECOND))  # type: ignore[arg-type]
    assert title not in titles(drawn(FIRST, SECOND))


def test_a_zombie_that_comes_back_after_the_end_is_still_in_the_picture() -> None:
    root = drawn(replace(FIRST, refused_s=200.0), SECOND)
    xs = [float(rect.get("x", 0)) for rect in root.iter(f"{NS}rect")]
    assert max(xs) < 1000
    row = next(text for text in root.iter(f"{NS}text") if text.get("fill") == svg.PINK)
    assert (row.text, row.get("text-anchor")) == ("zombie refused", "end")


def extent(text: ET.Element) -> tuple[float, float]:
    """Where a text begins and ends, with letters as wide as those of a wide font."""
    width = 0.62 * float(text.get("font-size", 0)) * len(text.text or "")
    part = {"start": 0.0, "middle": 0.5, "end": 1.0}[text.get("text-anchor", "start")]
    begin = float(text.get("x", 0)) - part * width
    return begin, begin + width


@pytest.mark.parametrize("end_s", [0.5, 9.0, 100.0, 101.0, 109.0, 115.0, 130.0, 9999.0, 86_400.0])
def test_no_label_is_cut_off(end_s: float) -> None:
    """Whenever the zombie comes, and whenever the job ends."""
    for refused_s in (end_s / 2, end_s * 0.9, end_s):
        first = Span("g1 aws us-east-2a", "aws", 0.0, 0.1, 0.2, 0.3, refused_s=refused_s)
        root = drawn(first, Span("g2", "gcp", 0.1, 0.2, end_s, end_s))
        extents = [(text.text, *extent(text)) for text in root.iter(f"{NS}text")]
        assert [words for words, *_ in extents].count("zombie refused") == 2, "and in the legend"
        assert [words for words, begin, end in extents if begin < 0 or end > 1000] == []


def test_every_mark_of_a_row_is_in_the_legend() -> None:
    marks = replace(FIRST, died=True, notice_s=50.0, refused_s=95.0)
    legend = {text.text for text in drawn().iter(f"{NS}text")}
    assert legend >= {"notice", "death without notice", "zombie refused", "checkpoint"}
    shapes = {(e.tag, e.get("fill"), e.get("stroke")) for e in drawn(marks).iter()}
    known = {(e.tag, e.get("fill"), e.get("stroke")) for e in drawn().iter()}
    assert {s for s in shapes - known if s[0] in (f"{NS}path", f"{NS}circle")} == set()


def test_a_machine_that_never_trained_has_no_training() -> None:
    root = drawn(Span("g1 aws", "aws", 0.0, None, None, 30.0))
    assert bars(root, "getting ready 30.0 s")
    assert not [title for title in titles(root) if title.startswith("training")]


def test_no_machine_is_a_picture_too() -> None:
    assert drawn().get("width") == "1000"


@pytest.mark.parametrize(
    ("end_s", "ticks"),
    [(52.0, "50 s"), (590.0, "500 s"), (3600.0, "60 min"), (7 * 3600.0, "7 h"), (9e5, "10 d")],
)
def test_the_scale_has_a_unit_that_can_be_read(end_s: float, ticks: str) -> None:
    span = Span("g1 a", "aws", asked_s=0.0, first_s=1.0, last_s=end_s, ended_s=end_s)
    assert f">{ticks}</text>" in ribbon("a job", [span])
