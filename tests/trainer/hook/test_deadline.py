"""What is done with the time that a notice leaves, and how the ranks come to the same plan."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainer.hook.spotd_hook.deadline import (
    FACTOR,
    RESERVE_S,
    Action,
    DeadlineSituation,
    plan,
    situation_of,
    slots,
    words_of,
)

# 70B with pure bf16 AdamW, 420 GB a node: 3.5 s to stage and 53 s to upload on AWS (8 GB/s).
BIG_S = 56.5
TIMES = st.floats(0, 1e5)
FLIGHTS = st.none() | TIMES
SITUATIONS = st.builds(DeadlineSituation, TIMES, TIMES, TIMES, FLIGHTS)


@pytest.mark.parametrize(
    ("now", "action", "start_in_s", "end_in_s"),
    [
        # 120 s - 2 s - 1.3 x 56.5 s
        (DeadlineSituation(120, 5, BIG_S), Action.TRAIN, 44.55, 101.05),
        (DeadlineSituation(80, 5, BIG_S), Action.SAVE, 0, 56.5),  # no step is safe any more
        (DeadlineSituation(59, 5, BIG_S), Action.SAVE, 0, 56.5),  # it fits if all goes as measured
        (DeadlineSituation(58, 5, BIG_S), Action.RELEASE, 0, 0),
        (DeadlineSituation(30, 5, BIG_S), Action.RELEASE, 0, 0),
        (DeadlineSituation(30, 5, BIG_S, 27), Action.FINISH, 0, 27),
        (DeadlineSituation(30, 5, BIG_S, 28.5), Action.RELEASE, 0, 0),
        # A fresh one goes out behind the one in flight.
        (DeadlineSituation(120, 5, BIG_S, 20), Action.TRAIN, 44.55, 101.05),
        (DeadlineSituation(120, 5, BIG_S, 40), Action.TRAIN, 21.5, 96.5),
        (DeadlineSituation(95, 5, BIG_S, 20), Action.TRAIN, 16.5, 76.5),
        (DeadlineSituation(82, 5, BIG_S, 20), Action.SAVE, 0, 76.5),
        (DeadlineSituation(70, 5, BIG_S, 20), Action.FINISH, 0, 20),
        # What was never measured is tried: a guess gives no step away.
        (DeadlineSituation(2.7, 0.1, 5.0, None, guessed=True), Action.SAVE, 0, 5.0),
        (DeadlineSituation(2.7, 0.1, 5.0, 4.0, guessed=True), Action.FINISH, 0, 4.0),
        (DeadlineSituation(0.0, 0.1, 5.0, None, guessed=True), Action.RELEASE, 0, 0),
        (DeadlineSituation(120, 5, 5.0, None, guessed=True), Action.TRAIN, 111.5, 116.5),
        # 8B fits everywhere.
        (DeadlineSituation(30, 1, 12.8), Action.TRAIN, 11.36, 24.16),
        # Of little time only half is kept for the end.
        (DeadlineSituation(1.0, 0.01, 0.1), Action.TRAIN, 0.37, 0.47),
        (DeadlineSituation(-3.0, 1, 1), Action.RELEASE, 0, 0),
    ],
)
def test_the_plan(
    now: DeadlineSituation, action: Action, start_in_s: float, end_in_s: float
) -> None:
    found = plan(now)
    assert found.action is action
    assert found.start_in_s == pytest.approx(start_in_s)
    assert found.end_in_s == pytest.approx(end_in_s)
    assert found.margin_s == pytest.approx(now.left_s - end_in_s)
    assert found.leaves is (action is not Action.TRAIN)


# Of a step that takes no time: the last snapshot is due, and there is none to train.
@example(DeadlineSituation(3146.0, 0.0, 3142.0))
@given(SITUATIONS)
def test_training_goes_on_only_while_the_last_save_fits_after_one_more_step(
    now: DeadlineSituation,
) -> None:
    found, work_s = plan(now), (now.flight_s or 0) + now.save_s
    reserve_s = min(RESERVE_S, now.left_s / 2)
    if found.action is Action.TRAIN:
        assert max(now.step_s, now.flight_s or 0) + now.save_s + reserve_s <= now.left_s + 1e-6
        assert found.start_in_s >= now.step_s
        assert found.end_in_s + reserve_s <= now.left_s + 1e-6
        if not now.flight_s:
            assert now.step_s + FACTOR * work_s + reserve_s <= now.left_s + 1e-6
            assert found.start_in_s + FACTOR * work_s + reserve_s == pytest.approx(now.left_s)
    elif found.action is not Action.RELEASE:
        assert found.end_in_s + reserve_s <= now.left_s + 1e-6
    else:
        assert work_s + reserve_s > now.left_s - 1e-6


@given(SITUATIONS, st.floats(0, 1e4))
def test_more_time_never_makes_less_of_it(now: DeadlineSituation, more_s: float) -> None:
    order = [Action.RELEASE, Action.FINISH, Action.SAVE, Action.TRAIN]
    later = DeadlineSituation(now.left_s + more_s, now.step_s, now.save_s, now.flight_s)
    assert order.index(plan(later).action) >= order.index(plan(now).action)


@pytest.mark.parametrize(
    ("left_s", "admits"), [(120.0, False), (150.0, False), (160.0, True), (30.0, False)]
)
def test_the_cadence_keeps_out_of_the_way_of_the_last_save(left_s: float, admits: bool) -> None:
    assert plan(DeadlineSituation(left_s, 5, BIG_S)).admits_save is admits
    assert not plan(DeadlineSituation(left_s, 5, BIG_S, 1.0)).admits_save


def test_all_ranks_make_the_same_plan_of_the_sum() -> None:
    """One rank of three has heard of the notice, another has most to save."""
    said = [
        words_of(None, 0.5, 4.0, None),
        words_of(20.0, 0.25, 2.0, 1.5),
        words_of(None, 0.75, 0.0, None),
    ]
    rows = [slots(rank, 3, words) for rank, words in enumerate(said)]
    summed = [float(sum(column)) for column in zip(*rows, strict=True)]
    now = situation_of(summed)
    assert now is not None
    assert now == DeadlineSituation(20.0, pytest.approx(0.75, abs=0.002), 4.001, 1.501)
    assert plan(now).action is Action.TRAIN


def test_all_ranks_know_of_a_guess_of_one() -> None:
    said = [words_of(None, 0.5, 0.0, None), words_of(2.7, 0.5, 5.0, None, guessed=True)]
    rows = [slots(rank, 2, words) for rank, words in enumerate(said)]
    now = situation_of([float(sum(column)) for column in zip(*rows, strict=True)])
    assert now == DeadlineSituation(2.7, 0.501, 5.001, None, guessed=True)
    assert plan(now).action is Action.SAVE


def test_nobody_has_heard() -> None:
    words = words_of(None, 1.0, 5.0, 2.0)
    assert situation_of([float(word) for word in slots(0, 1, words)]) is None


def test_no_time_left_is_not_the_same_as_no_notice() -> None:
    now = situation_of(slots(0, 1, words_of(-1.0, 1.0, 5.0, None)))
    assert now is not None
    assert now.left_s == 0
    assert plan(now).action is Action.RELEASE


@given(TIMES, TIMES, TIMES, FLIGHTS)
def test_words_round_to_the_safe_side(
    left_s: float, step_s: float, save_s: float, flight_s: float | None
) -> None:
    now = situation_of(slots(0, 1, words_of(left_s, step_s, save_s, flight_s)))
    assert now is not None
    assert left_s - 0.0011 <= now.left_s <= left_s
    assert step_s <= now.step_s + 1e-9
    assert save_s <= now.save_s + 1e-9
    assert (now.flight_s is None) is (flight_s is None)
    assert flight_s is None or now.flight_s is None or flight_s <= now.flight_s + 1e-9


@pytest.mark.parametrize(("rank", "words"), [(2, (0, 0, 0, 0)), (-1, (0, 0, 0, 0)), (0, (1,))])
def test_a_rank_that_is_none_has_no_place(rank: int, words: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=f"of rank {rank} of 2"):
        slots(rank, 2, words)
