"""What is left of a job, how long starts take, and what an end would cost now."""

from __future__ import annotations

from typing import Any

import pytest

from spotd.domain.job import CheckpointSpec
from spotd.domain.node_history import FleetHistory, NodeLifetime
from spotd.domain.preferences import GenerationSaves, Preferences
from spotd.domain.states import NodeState
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.planner.core.remaining_work import START_S, left_s, lost_s, start_s, step_s, unsaved_s
from tests.spotd.planner.build import JOB, NOW, OFFERS, head, market, node, spec, view

# 100 steps in 1000 s, then 100 in 500 s.
FIRST, SECOND = (
    GenerationSaves(1, 0, 100, 0, 1000 * S),
    GenerationSaves(2, 150, 250, 2000 * S, 2500 * S),
)


def a_view(preferences: Preferences, *saved: GenerationSaves, step: int = 0, **fields: Any) -> View:
    seen = head(step=step) if step else None
    here = node(NodeState.RUNNING)
    return view(
        here, job={"spec": spec(preferences=preferences), "head": seen}, saved=saved, **fields
    )


def test_a_step_takes_what_lies_between_the_newest_checkpoints() -> None:
    assert step_s(a_view(Preferences(), FIRST)) == 10.0
    assert step_s(a_view(Preferences(), FIRST, SECOND)) == 7.5
    more = [GenerationSaves(n, 0, 100, 0, 200 * S) for n in (3, 4, 5)]
    assert step_s(a_view(Preferences(), FIRST, SECOND, *more)) == 2.0  # of the newest three


def test_before_two_checkpoints_it_is_what_is_foretold() -> None:
    assert step_s(a_view(Preferences(step_s=3.0))) == 3.0
    assert step_s(a_view(Preferences(step_s=3.0), GenerationSaves(1, 50, 50, 7 * S, 7 * S))) == 3.0
    assert step_s(a_view(Preferences(step_s=3.0), GenerationSaves(1, 50, 60, 7 * S, 7 * S))) == 3.0
    assert step_s(a_view(Preferences())) == 0.0


@pytest.mark.parametrize(
    ("preferences", "saved", "step", "expected"),
    [
        (Preferences(work_steps=1000), (FIRST,), 100, 9000.0),
        (Preferences(work_steps=1000), (), 100, None),  # nobody knows how long a step takes
        (Preferences(work_steps=1000, step_s=2.0), (), 100, 1800.0),
        (Preferences(work_steps=1000), (FIRST,), 1000, 10.0),  # a step at least: its end is its own
        (Preferences(work_steps=1000), (FIRST,), 2000, 10.0),
        (Preferences(work_s=7200.0), (), 0, 7200.0),
        (Preferences(work_s=7200.0), (FIRST,), 100, 6200.0),
        (Preferences(work_s=7200.0), (FIRST, SECOND), 250, 7200 - 250 * 7.5),
        (Preferences(work_s=7200.0), (FIRST,), 0, 6200.0),  # HEAD is not known: by its checkpoints
        (Preferences(work_s=500.0), (FIRST,), 100, 10.0),
        (Preferences(work_s=500.0), (GenerationSaves(1, 7, 7, 0, 600 * S),), 0, 1.0),
        (Preferences(), (FIRST,), 100, None),
    ],
)
def test_what_is_left(
    preferences: Preferences, saved: tuple[GenerationSaves, ...], step: int, expected: float | None
) -> None:
    assert left_s(a_view(preferences, *saved, step=step)) == expected


def test_a_machine_of_half_the_speed_does_half_as_much_in_its_time() -> None:
    half = a_view(Preferences(work_s=7200.0), FIRST, step=100)
    assert left_s(half, 0.5) == 6700.0
    assert left_s(a_view(Preferences(work_s=7200.0), FIRST), 0.5) == 6700.0
    assert left_s(a_view(Preferences(work_steps=1000), FIRST, step=100), 0.5) == 4500.0


def test_unsaved_is_what_was_done_since_the_last_checkpoint_of_its_own() -> None:
    here = node(NodeState.RUNNING, generation=2)
    began_s = (NOW - here.training.first_step_at_us) / S
    assert unsaved_s(here, view(here), NOW) == began_s
    mine = head(generation=2, seen_at_us=NOW - 5 * S)
    assert unsaved_s(here, view(here, job={"head": mine}), NOW) == 5.0
    before = head(generation=1, seen_at_us=NOW - 5 * S)
    assert unsaved_s(here, view(here, job={"head": before}), NOW) == began_s
    assert unsaved_s(node(NodeState.BOOTING), view(), NOW) == 0.0
    ahead = head(generation=2, seen_at_us=NOW + 5 * S)  # another box has another clock
    assert unsaved_s(here, view(here, job={"head": ahead}), NOW) == 0.0


def test_an_end_costs_the_pause_between_two_saves() -> None:
    saves = spec(checkpoint=CheckpointSpec("file:///ckpt", "spotd", every_s=240.0))
    assert lost_s(OFFERS[0], saves, market()) == 240.0
    script = spec(checkpoint=CheckpointSpec("file:///ckpt", "none"))
    assert lost_s(OFFERS[0], script, market()) == 0.0


def started(job: str, *took_s: float) -> tuple[NodeLifetime, ...]:
    return tuple(
        NodeLifetime(f"{job}-g{n}-0", "k", NOW, "", NOW, trained_at_us=NOW + int(each * S))
        for n, each in enumerate(took_s)
    )


def test_a_start_takes_what_starts_took() -> None:
    assert start_s(FleetHistory(), JOB) == START_S
    assert (
        start_s(FleetHistory((NodeLifetime("x-g1-0", "k", NOW),)), JOB) == START_S
    )  # it never trained
    fleet = started("x", 100.0, 120.0, 110.0)
    assert start_s(FleetHistory(fleet), JOB) == 120.0  # the slowest of few
    assert start_s(FleetHistory((*fleet, *started(JOB, 40.0))), JOB) == 40.0  # its own come first
    assert start_s(FleetHistory((*fleet[:2], *started(f"{JOB}1", 40.0))), JOB) == 120.0


def test_of_many_starts_one_of_ten_may_take_longer() -> None:
    ten = [100.0 + n for n in range(10)]
    assert start_s(FleetHistory(started(JOB, *ten, 9000.0)), JOB) == 109.0
    assert start_s(FleetHistory(started(JOB, 1.0, 2.0, 3.0, 4.0)), JOB) == pytest.approx(3.7)
    old = [9000.0] * 60
    assert (
        start_s(FleetHistory(started(JOB, *old, *[50.0] * 50)), JOB) == 50.0
    )  # the newest alone count
