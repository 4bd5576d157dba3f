"""The plan for a notice, and how the ranks agree on it."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainer.hook.spotd_hook.deadline import (
    RESERVE_S,
    SAFETY_FACTOR,
    Action,
    DeadlineSituation,
    combine_situations,
    encode_situation,
    plan,
    rank_slots,
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
        (DeadlineSituation(58, 5, BIG_S), Action.SAVE, 0, 56.5),  # in the time kept for the release
        (DeadlineSituation(56, 5, BIG_S), Action.RELEASE, 0, 0),
        (DeadlineSituation(30, 5, BIG_S), Action.RELEASE, 0, 0),
        (DeadlineSituation(30, 5, BIG_S, 27), Action.FINISH, 0, 27),
        (DeadlineSituation(30, 5, BIG_S, 28.5), Action.FINISH, 0, 28.5),
        (DeadlineSituation(30, 5, BIG_S, 30.5), Action.RELEASE, 0, 0),
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
    result = plan(now)
    assert result.action is action
    assert result.start_in_s == pytest.approx(start_in_s)
    assert result.end_in_s == pytest.approx(end_in_s)
    assert result.margin_s == pytest.approx(now.remaining_s - end_in_s)
    assert result.ends_training is (action is not Action.TRAIN)


# Of a step that takes no time: the last snapshot is due, and there is none to train.
@example(DeadlineSituation(3146.0, 0.0, 3142.0))
@given(SITUATIONS)
def test_training_goes_on_only_while_the_last_save_fits_after_one_more_step(
    now: DeadlineSituation,
) -> None:
    result, work_s = plan(now), (now.in_flight_s or 0) + now.save_s
    reserve_s = min(RESERVE_S, now.remaining_s / 2)
    if result.action is Action.TRAIN:
        assert (
            max(now.step_s, now.in_flight_s or 0) + now.save_s + reserve_s <= now.remaining_s + 1e-6
        )
        assert result.start_in_s >= now.step_s
        assert result.end_in_s + reserve_s <= now.remaining_s + 1e-6
        if not now.in_flight_s:
            assert now.step_s + SAFETY_FACTOR * work_s + reserve_s <= now.remaining_s + 1e-6
            assert result.start_in_s + SAFETY_FACTOR * work_s + reserve_s == pytest.approx(
                now.remaining_s
            )
    elif result.action is not Action.RELEASE:
        assert result.end_in_s <= now.remaining_s
    else:
        assert work_s > now.remaining_s - 1e-6


@given(SITUATIONS, st.floats(0, 1e4))
def test_more_time_never_makes_less_of_it(now: DeadlineSituation, more_s: float) -> None:
    order = [Action.RELEASE, Action.FINISH, Action.SAVE, Action.TRAIN]
    later = DeadlineSituation(now.remaining_s + more_s, now.step_s, now.save_s, now.in_flight_s)
    assert order.index(plan(later).action) >= order.index(plan(now).action)


@pytest.mark.parametrize(
    ("remaining_s", "admits"), [(120.0, False), (150.0, False), (160.0, True), (30.0, False)]
)
def test_the_cadence_keeps_out_of_the_way_of_the_last_save(
    remaining_s: float, admits: bool
) -> None:
    assert plan(DeadlineSituation(remaining_s, 5, BIG_S)).allows_save is admits
    assert not plan(DeadlineSituation(remaining_s, 5, BIG_S, 1.0)).allows_save


def test_all_ranks_make_the_same_plan_of_the_sum() -> None:
    """One rank of three has the notice, another has most to save."""
    rank_values = [
        encode_situation(None, 0.5, 4.0, None),
        encode_situation(20.0, 0.25, 2.0, 1.5),
        encode_situation(None, 0.75, 0.0, None),
    ]
    rows = [rank_slots(rank, 3, values) for rank, values in enumerate(rank_values)]
    summed = [float(sum(column)) for column in zip(*rows, strict=True)]
    now = combine_situations(summed)
    assert now is not None
    assert now == DeadlineSituation(20.0, pytest.approx(0.75, abs=0.002), 4.001, 1.501)
    assert plan(now).action is Action.TRAIN


def test_all_ranks_know_of_a_guess_of_one() -> None:
    rank_values = [
        encode_situation(None, 0.5, 0.0, None),
        encode_situation(2.7, 0.5, 5.0, None, guessed=True),
    ]
    rows = [rank_slots(rank, 2, values) for rank, values in enumerate(rank_values)]
    now = combine_situations([float(sum(column)) for column in zip(*rows, strict=True)])
    assert now == DeadlineSituation(2.7, 0.501, 5.001, None, guessed=True)
    assert plan(now).action is Action.SAVE


def test_nobody_has_heard() -> None:
    values = encode_situation(None, 1.0, 5.0, 2.0)
    assert combine_situations([float(word) for word in rank_slots(0, 1, values)]) is None


def test_no_time_left_is_not_the_same_as_no_notice() -> None:
    now = combine_situations(rank_slots(0, 1, encode_situation(-1.0, 1.0, 5.0, None)))
    assert now is not None
    assert now.remaining_s == 0
    assert plan(now).action is Action.RELEASE


@given(TIMES, TIMES, TIMES, FLIGHTS)
def test_words_round_to_the_safe_side(
    remaining_s: float, step_s: float, save_s: float, in_flight_s: float | None
) -> None:
    now = combine_situations(
        rank_slots(0, 1, encode_situation(remaining_s, step_s, save_s, in_flight_s))
    )
    assert now is not None
    assert remaining_s - 0.0011 <= now.remaining_s <= remaining_s
    assert step_s <= now.step_s + 1e-9
    assert save_s <= now.save_s + 1e-9
    assert (now.in_flight_s is None) is (in_flight_s is None)
    assert in_flight_s is None or now.in_flight_s is None or in_flight_s <= now.in_flight_s + 1e-9


@pytest.mark.parametrize(("rank", "values"), [(2, (0, 0, 0, 0)), (-1, (0, 0, 0, 0)), (0, (1,))])
def test_a_rank_that_is_none_has_no_place(rank: int, values: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=f"of rank {rank} of 2"):
        rank_slots(rank, 2, values)
