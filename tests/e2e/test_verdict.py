"""The judge of the end-to-end runs would see what it is there for."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from spotd.demo.box import Box
from spotd.domain.fast_replace import changed
from tests.e2e.rig import Reference, Run
from tests.e2e.verdict import LOST_MAX_STEPS, REPORT_STEPS, lost_steps, machines, missing_steps
from tests.spotd.demo.story import NODES, PREEMPTIONS, PROGRESS, at, progress

LEFT = changed(NODES[0], left_at_us=at(10), gone_at_us=0)


@pytest.mark.parametrize(("ended_s", "wrong"), [(11, 0), (24.9, 0), (25.1, 1), (190, 1)])
def test_a_machine_that_is_given_back_late_is_wrong_though_we_call_it_gone_later(
    ended_s: float, wrong: int
) -> None:
    node = changed(LEFT, gone_at_us=at(ended_s + 1))
    meter = [
        {"token": "t1", "instance_id": "i1", "ended_at_us": at(ended_s), "seconds": ended_s},
    ]
    found = machines(meter, [node], at(200))
    assert len(found) == wrong
    assert all("not wanted any more" in text for text in found)


def test_machines_that_nobody_knows_and_that_run_are_wrong() -> None:
    rows = [("t1", "i1", 9), ("t1", "i2", 9), ("stranger", "i3", None)]
    meter = [
        {"token": token, "instance_id": i, "ended_at_us": end and at(end), "seconds": 9.0}
        for token, i, end in rows
    ]
    found = machines(meter, [LEFT], at(200))
    assert "token t1 got 2 machines" in found
    assert "machines left running: ['i3']" in found
    assert "18.0 s of machines that belong to no node" in found


REFERENCE = Reference("file:///r", "r", dict.fromkeys(range(1, 39), 1.0))
HOLE = [PROGRESS[0], progress(2, 14, 24), *PROGRESS[2:]]  # steps 11 to 13
WITHIN = [*PROGRESS[:2], progress(2, 24, 40), progress(3, 34, 60)]  # steps 19 to 23


def run(tmp_path: Any, **fields: Any) -> Run:
    return Run(Box(tmp_path), "j1", Random(1), **fields)


def test_a_record_with_steps_that_nobody_reported_is_wrong(tmp_path: Any) -> None:
    assert missing_steps(run(tmp_path), PROGRESS, REFERENCE) == []
    (text,) = missing_steps(run(tmp_path), PROGRESS[:1], REFERENCE)
    assert text == "28 steps were never reported, the first is 11"
    assert missing_steps(run(tmp_path), [], REFERENCE)
    assert missing_steps(run(tmp_path), HOLE, REFERENCE)


@pytest.mark.parametrize(
    ("rows", "fields", "wrong"),
    [
        (HOLE, {"unheard": True}, 0),
        (WITHIN, {"unheard": True}, 1),  # the machine was there when the next daemon listened
        (PROGRESS[:3], {"unheard": True}, 1),
        (WITHIN, {"agents_killed": 1}, 0),
        (PROGRESS[:2], {"agents_killed": 1}, 1),  # more than one report
    ],
)
def test_a_report_may_go_with_the_daemon_or_the_agent_that_was_killed(
    rows: Any, fields: Any, wrong: int, tmp_path: Any
) -> None:
    assert 5 < REPORT_STEPS < 20
    assert len(missing_steps(run(tmp_path, **fields), rows, REFERENCE)) == wrong


@pytest.mark.parametrize(
    ("mode", "lost", "wrong"),
    [
        ("notice", 0, []),
        ("notice", 1, ["generation 1 lost 1 steps: more than 0"]),
        ("silent", LOST_MAX_STEPS, []),
        ("silent", LOST_MAX_STEPS + 1, ["generation 1 lost 39 steps: more than 38"]),
        (None, LOST_MAX_STEPS + 1, ["generation 1 lost 39 steps: more than 38"]),
    ],
)
def test_steps_lost_are_bounded_by_what_was_saved(
    mode: str | None, lost: int, wrong: list[str]
) -> None:
    """After a notice none; else those since the last save, also when only the program died."""
    old = replace(PROGRESS[0], to_step=100, losses=(1.0,) * 100)
    chosen = [replace(node, chosen=True) for node in NODES]
    preemptions = [{**PREEMPTIONS[0], "mode": mode}] if mode else []
    assert lost_steps(preemptions, chosen, [old, progress(2, 101 - lost, 200)]) == wrong
