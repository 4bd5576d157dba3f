"""How long the demo waits for its jobs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spotd.demo.box import BoxError
from spotd.demo.story import DemoRun


class Slow:
    """A box whose job makes a step each time that it is looked at so often, up to the last."""

    def __init__(self, last: int, looks: int) -> None:
        self.last, self.looks, self.looked = last, looks, 0

    def events(self, _job_id: str, _after: int) -> list[dict[str, Any]]:
        return []

    def submit(self, _text: str, _name: str) -> str:
        return "j1"

    def job(self, _job_id: str) -> dict[str, Any]:
        self.looked += 1
        step = min(self.looked // self.looks, self.last)
        over = step == 6
        node = {"state": "gone" if over else "running", "step": step}
        return {"phase": "succeeded" if over else "running", "nodes": [node]}


def story(box: Slow) -> DemoRun:
    screen = SimpleNamespace(say=lambda *_: None, show=lambda *_: None)
    return DemoRun(box, screen)  # type: ignore[arg-type]


def test_a_job_that_makes_steps_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spotd.demo.story.STILL_TIMEOUT_S", 0.5)
    box = Slow(last=6, looks=3)
    assert story(box).undisturbed() == "j1"
    assert box.looked * 0.1 > 1.5, "three times as long"


def test_one_that_makes_none_any_more_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spotd.demo.story.STILL_TIMEOUT_S", 0.5)
    with pytest.raises(BoxError, match="in vain for j1 to make a step, or to end"):
        story(Slow(last=2, looks=1)).undisturbed()
