"""The attempt ribbon says who trained when, and hides no loss."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from spotd.serve import svg
from spotd.serve.ribbon import LEFT, RIGHT, Span, ribbon

NS = "{http://www.w3.org/2000/svg}"
FIRST = Span("g1 aws", "aws", 0.0, 10.0, 60.0, 70.0, checkpoints_s=(20.0, 40.0), note="local")
SECOND = Span("g2 gcp", "gcp", 55.0, 62.0, 100.0, 100.0)


def drawn(*spans: Span, width: int = 1000) -> ET.Element:
    return ET.fromstring(ribbon("a job", spans, width))


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
    assert "zombie refused" in [text.text for text in root.iter(f"{NS}text")]


def test_a_machine_that_never_trained_has_no_training() -> None:
    root = drawn(Span("g1 aws", "aws", 0.0, None, None, 30.0))
    assert bars(root, "getting ready 30.0 s")
    assert not [title for title in titles(root) if title.startswith("training")]


def test_no_machine_is_a_picture_too() -> None:
    assert drawn().get("width") == "1000"
