"""What a job loses when it goes on with another attempt."""

from __future__ import annotations

from dataclasses import replace

import pytest

from providers.dollars import format_microusd
from spotd.domain.lost_work import (
    HandOver,
    LostWork,
    TrainedAttempt,
    describe_lost_work,
    lost_work,
    trained_attempts,
)
from spotd.domain.units import S
from spotd.wire.printed_steps import StepSeries, unknown_series
from tests.spotd.planner.build import node

OLD = TrainedAttempt(
    generation=1,
    began_us=1000 * S,
    ended_us=1500 * S,
    last_step=1100,
    resumed_step=100,
    microusd_per_h=3_600_000,
)
STEPS = HandOver(OLD, saved_at_us=1400 * S, reports_steps=True)
SCRIPT = HandOver(OLD, saved_at_us=1400 * S, reports_steps=False)


def test_steps_after_the_checkpoint_at_their_mean_pace() -> None:
    """1000 steps in 500 s, of a machine of $3.60 an hour."""
    assert lost_work(STEPS, 1000) == LostWork(100, 50.0, 50_000, anew=False)
    assert lost_work(STEPS, 1100) == LostWork(0, 0.0, 0, anew=False)


def test_further_back_than_the_attempt_itself_began() -> None:
    """Its own checkpoints were damaged."""
    assert lost_work(STEPS, 50) == LostWork(1050, 525.0, 525_000, anew=False)


def test_from_the_beginning() -> None:
    assert lost_work(STEPS, 0) == LostWork(1100, 550.0, 550_000, anew=True)
    made_none = replace(STEPS, old=replace(OLD, last_step=0, resumed_step=0))
    assert lost_work(made_none, 0) == LostWork(0, 0.0, 0, anew=False)


def test_what_is_not_on_record_is_not_known() -> None:
    assert lost_work(STEPS, None) == LostWork(None, None, None, anew=False)


def test_a_script_loses_the_time_since_its_newest_save() -> None:
    assert lost_work(SCRIPT, 7) == LostWork(None, 100.0, 100_000, anew=False)
    saved_last = replace(SCRIPT, saved_at_us=1501 * S)
    assert lost_work(saved_last, 7) == LostWork(None, 0.0, 0, anew=False)


def test_a_script_that_saved_nothing_in_that_attempt() -> None:
    assert lost_work(replace(SCRIPT, saved_at_us=900 * S), 7).seconds == 500.0


def test_a_script_that_was_seen_to_begin_anew_loses_all_that_was_there() -> None:
    """100 s of an attempt before, and the 500 s of this one."""
    lost = lost_work(replace(SCRIPT, kept_s=100.0), 7, anew=True)
    assert lost == LostWork(None, 600.0, 600_000, anew=True)
    assert not lost_work(replace(STEPS, kept_s=100.0), 1000, anew=True).anew, "its steps tell"


def test_a_script_of_which_nothing_was_ever_saved_begins_anew() -> None:
    lost = lost_work(replace(SCRIPT, saved_at_us=0), 0)
    assert lost == LostWork(None, 500.0, 500_000, anew=True)


def test_attempts_by_their_machine_of_rank_0() -> None:
    trained = {"first_step_at_us": 5 * S, "last_step": 9, "resumed_step": 2}
    nodes = [
        node(generation=2, exit_code=1, exited_at_us=30 * S, **trained),
        node(generation=1, heard_at_us=20 * S, **trained),
        node(generation=1, rank=1, **trained),
        node(generation=3),
    ]
    first, second = trained_attempts(nodes, 2)
    assert (first.generation, first.ended_us, first.failed) == (1, 20 * S, False)
    assert (second.generation, second.ended_us, second.failed) == (2, 30 * S, True)
    assert first.microusd_per_h == 2 * nodes[1].offer.price_microusd_per_h
    assert (first.last_step, first.resumed_step) == (9, 2)


@pytest.mark.parametrize(
    ("lost", "text"),
    [
        (LostWork(None, None, None, anew=False), "what it lost is not known"),
        (LostWork(0, 0.0, 0, anew=False), "no work is lost"),
        (LostWork(None, 0.4, 40, anew=False), "no work is lost"),
        (LostWork(1, 2.5, 2_500, anew=False), "lost: 1 step, 2.5 s of work ($0.0025)"),
        (
            LostWork(1100, 9000.0, 25_000_000, anew=True),
            "it starts from the beginning: 1,100 steps, 2.5 h of work ($25.00) is lost",
        ),
        (LostWork(None, 300.0, 210_000, anew=False), "lost: 5 min of work ($0.2100)"),
    ],
)
def test_it_is_told_in_one_clause(lost: LostWork, text: str) -> None:
    assert describe_lost_work(lost) == text


def test_numbers_have_the_digits_that_mean_something() -> None:
    assert [format_microusd(u) for u in (0, 123, 999_999, 1_000_000)] == [
        "$0.00",
        "$0.0001",
        "$1.00",
        "$1.00",
    ]


def test_a_script_that_keeps_its_work_elsewhere_loses_the_steps_that_it_prints_again() -> None:
    """It printed each 10th step up to 500 in 500 s, and prints 310 as its first: 200 steps."""
    old = replace(OLD, printed={"step": StepSeries(10, 500, 50)})
    script = replace(SCRIPT, old=old, saved_at_us=0)
    resumed = {"step": StepSeries(310, 400, 10)}
    assert lost_work(script, 0, printed=resumed) == LostWork(None, 200.0, 200_000, anew=False)
    at_end = {"step": StepSeries(510, 600, 10)}
    assert lost_work(script, 0, printed=at_end) == LostWork(None, 0.0, 0, anew=False)
    before = {"step": StepSeries(1, 2, 2)}
    assert lost_work(script, 0, printed=before) == LostWork(None, 500.0, 500_000, anew=False)


def test_of_a_script_that_may_print_its_history_the_loss_is_not_known() -> None:
    old = replace(OLD, printed={"step": StepSeries(10, 500, 50)})
    script = replace(SCRIPT, old=old, saved_at_us=0)
    unknown = unknown_series("step")
    assert lost_work(script, 0, printed=unknown) == LostWork(None, None, None, anew=False)
    resolved = {**unknown, "step": StepSeries(510, 600, 10)}
    assert lost_work(script, 0, printed=resolved) == LostWork(None, 0.0, 0, anew=False)
    assert lost_work(script, 0, anew=True, printed=unknown).anew, "its agent has told since"


def test_a_script_whose_steps_are_not_known_loses_all() -> None:
    unknown = LostWork(None, 500.0, 500_000, anew=True)
    script = replace(SCRIPT, saved_at_us=0)
    assert lost_work(script, 0, printed={"step": StepSeries(310, 400, 10)}) == unknown
    known = replace(script, old=replace(OLD, printed={"step": StepSeries(10, 500, 50)}))
    assert lost_work(known, 0, printed={}) == unknown
    assert lost_work(known, 0, anew=True, printed={"step": StepSeries(10, 20, 2)}) == unknown
