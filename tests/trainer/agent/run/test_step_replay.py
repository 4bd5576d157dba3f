"""A history comes at once, training takes its time; what lies between is not known."""

from __future__ import annotations

import pytest

from spotd.wire import StepSeries
from trainer.agent.run.step_replay import FAR_S, LEAST_AFTER, PRINT_PACE, Start, StepPace

BEFORE = StepSeries(1, 100, 100)


def starts(*looks: tuple[float, int], before: StepSeries = BEFORE) -> list[Start | None]:
    """What is known at each look, at a time with a number of steps so far."""
    pace = StepPace(before, 1.0)
    pace.add(0.0, None)
    return [pace.add(at_s, StepSeries(1, count, count)) for at_s, count in looks]


def test_a_history_is_known_once_enough_steps_came_after_it() -> None:
    after = [(2.0 + 10 * n, 100 + n) for n in range(LEAST_AFTER + 1)]
    *before, last = starts(*after)
    assert (set(before), last) == ({None}, Start.REPLAY)


def test_no_history_where_steps_go_on_as_fast() -> None:
    assert starts((5.0, 100), (10.0, 200))[-1] is Start.ANEW
    assert starts((5.0, 100), (10.0, 120), (20.0, 160))[-1] is None, "slower, but not by far"


def test_a_short_run_shows_no_pace() -> None:
    few = StepSeries(1, 5, 5)
    looks = [(2.0 + 10 * n, 5 + n) for n in range(20)]
    assert set(starts(*looks, before=few)) == {None}


def test_steps_that_would_take_long_to_the_end_are_trained() -> None:
    assert starts((1.0, 1), (11.0, 11))[-1] is Start.ANEW
    assert FAR_S < (100 - 11) / 1.0
    assert starts((0.0, 10), (1.0, 20))[-1] is None, "at the end in 8 s: it may be a history"


@pytest.mark.parametrize(("each", "known"), [(int(PRINT_PACE), True), (int(PRINT_PACE) * 2, False)])
def test_a_steady_pace_of_training_is_slower_than_print(each: int, known: bool) -> None:
    long = StepSeries(1, 1000, 1000)
    looks = [(float(n), n * each) for n in (1, 2, 3)]
    assert (starts(*looks, before=long)[-1] is Start.ANEW) == known
