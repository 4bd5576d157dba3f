"""Test how long the demo waits for its jobs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spotd.demo.box import BoxError
from spotd.demo.story import DemoRun


class Slow:
    """A box whose job makes a step every `looks` polls, up to step `last`."""

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
    screen = SimpleNamespace(add_event=lambda *_: None, update_job=lambda *_: None)
    return DemoRun(box, screen)  # type: ignore[arg-type]


def test_a_job_that_makes_steps_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spotd.demo.story.NO_PROGRESS_TIMEOUT_S", 0.5)
    box = Slow(last=6, looks=3)
    assert story(box).run_reference() == "j1"
    assert box.looked * 0.1 > 1.5, "three times as long"


def test_a_job_without_new_steps_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spotd.demo.story.NO_PROGRESS_TIMEOUT_S", 0.5)
    with pytest.raises(BoxError, match="in vain for j1 to make a step, or to end"):
        story(Slow(last=2, looks=1)).run_reference()
