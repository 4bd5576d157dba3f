"""The judge of a chaos run would see what it is there for, and its strikes can be repeated."""

from __future__ import annotations

from typing import Any

import pytest

from spotd.domain.fast_replace import changed
from tests.e2e.reckoning import GRACE_S, excess_s, figures, judge_machines, overlap_s, unable
from tests.e2e.strikes import DAEMON, DATABASE, MACHINES, Actor, Record
from tests.spotd.demo.story import NODES, at

NOW = at(400)
LEFT = changed(NODES[0], left_at_us=at(10), exited_at_us=0, gone_at_us=at(200))


def row(token: str = "t1", ended_s: float | None = 20.0, instance: str = "i1") -> dict[str, Any]:
    seconds = 400.0 if ended_s is None else ended_s
    ended_us = None if ended_s is None else at(ended_s)
    return {"token": token, "instance_id": instance, "ended_at_us": ended_us, "seconds": seconds}


def test_a_sound_run_is_sound() -> None:
    assert judge_machines([LEFT], [row()], [], NOW) == []


@pytest.mark.parametrize(
    ("meter", "wrong"),
    [
        ([row(), row(instance="i2")], "token t1 got 2 machines"),
        ([row(), row("stranger", instance="i2")], "nobody's machine: stranger"),
        ([row(ended_s=None)], "left running: i1"),
        ([row(ended_s=10 + GRACE_S + 1)], "was not wanted, and cost 1.0 s beyond"),
    ],
)
def test_every_kind_of_leak_is_seen(meter: list[dict[str, Any]], wrong: str) -> None:
    assert any(wrong in text for text in judge_machines([LEFT], meter, [], NOW))


def test_a_machine_after_we_called_it_gone_is_an_orphan_without_any_grace() -> None:
    node = changed(LEFT, gone_at_us=at(12))
    assert figures([node], [row(ended_s=20)], [], NOW)["orphan_seconds"] == 7.0


def test_time_in_which_nobody_could_act_is_not_held_against_a_box_and_no_other_time() -> None:
    meter = [row(ended_s=10 + GRACE_S + 30)]
    both = [("a", at(20), at(60)), ("b", at(40), at(90))]
    assert unable(both) == [(at(40), at(60))]
    assert excess_s([LEFT], meter, unable(both), NOW) == {LEFT.id: 10.0}
    assert excess_s([LEFT], meter, unable([("a", at(20), at(90))]), NOW) == {LEFT.id: 30.0}
    away = unable([("database", at(15), at(60)), *both])
    assert overlap_s((at(10), at(85)), away) == 45.0
    assert excess_s([LEFT], meter, away, NOW) == {}


@pytest.mark.parametrize("kinds", [DAEMON, DATABASE, MACHINES])
def test_the_same_seed_draws_the_same_strikes(kinds: dict[str, tuple[int, float]]) -> None:
    def strikes(seed: int) -> list[tuple[str, float]]:
        actor = Actor("somebody", seed, Record(), (0.0, 1.0))
        return [actor.draw(kinds) for _ in range(200)]

    assert strikes(1) == strikes(1) != strikes(2)
    assert {kind for kind, _ in strikes(1)} == set(kinds), "every kind comes"
