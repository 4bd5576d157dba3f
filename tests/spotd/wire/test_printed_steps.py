"""Whether a program resumed, by the numbers of steps that it prints."""

from __future__ import annotations

from typing import Any

import pytest

from spotd.wire import WireError
from spotd.wire.printed_steps import (
    MAX_SERIES,
    REPEATED,
    StepSeries,
    began_anew,
    continue_series,
    largest_series,
    main_series,
    merge_printed_steps,
    parse_printed_steps,
    printed_steps_data,
)

BEFORE = {"step": StepSeries(10, 240, 24), "step/3": StepSeries(1, 3, 3)}


def test_attempts_are_joined() -> None:
    later = {"step": StepSeries(130, 300, 18), "epoch": StepSeries(2, 2, 1)}
    joined = merge_printed_steps(BEFORE, later)
    assert joined["step"] == StepSeries(10, 300, 42)
    assert joined["epoch"] == StepSeries(2, 2, 1)
    assert main_series(joined) == "step"
    assert merge_printed_steps() == {}
    assert main_series({"epoch": StepSeries(2, 2, 1)}) == "", "it never grew"


def test_a_program_that_prints_as_low_again_began_anew() -> None:
    assert began_anew(BEFORE, {"step": StepSeries(10, 20, 2)}) is True
    assert began_anew(BEFORE, {"step": StepSeries(130, 140, 2)}) is False


def test_one_that_has_not_come_to_its_steps_is_not_judged() -> None:
    """It prints "step 1/3: loading" whenever it starts."""
    assert began_anew(BEFORE, {"step/3": StepSeries(1, 3, 3)}) is None
    assert began_anew(BEFORE, {"step": StepSeries(10, 10, 1)}) is None
    assert began_anew({}, {"step": StepSeries(10, 20, 2)}) is None


def test_steps_that_count_from_one_in_each_epoch() -> None:
    """The next epoch shows that it resumed, though its steps are as low again."""
    before = {"step/900": StepSeries(1, 800, 800), "epoch": StepSeries(1, 2, 2)}
    assert began_anew(before, {"step/900": StepSeries(1, 9, 9), "epoch": StepSeries(2, 2, 1)}) is (
        False
    )
    assert began_anew(before, {"step/900": StepSeries(1, 9, 9), "epoch": StepSeries(1, 1, 1)}) is (
        True
    )


def test_what_is_done_before_each_training_tells_nothing() -> None:
    """Data are prepared, a network is tuned, a fold is over: its total was reached."""
    before = {"bar/1000": StepSeries(3, 1000, 99), "step/5000": StepSeries(1, 60, 60)}
    again = {"bar/1000": StepSeries(3, 500, 9), "step/5000": StepSeries(51, 60, 10)}
    assert began_anew(before, {"bar/1000": StepSeries(3, 500, 9)}) is None
    assert began_anew(before, again) is False
    assert began_anew({"epoch/3": StepSeries(1, 3, 3)}, {"epoch/3": StepSeries(1, 2, 2)}) is None


def test_a_series_that_one_attempt_repeats_tells_nothing() -> None:
    first = {"bar/240": StepSeries(1, 100, 100)}
    second = {"bar/240": StepSeries(1, 239, REPEATED), "epoch": StepSeries(1, 5, 5)}
    before = merge_printed_steps(first, second)
    assert before["bar/240"].count == REPEATED
    now = {"bar/240": StepSeries(1, 9, 9), "epoch": StepSeries(5, 5, 1)}
    assert began_anew(before, now) is None
    assert began_anew(before, now | {"epoch": StepSeries(5, 6, 2)}) is False


def test_a_bar_that_is_drawn_from_time_to_time() -> None:
    before = {"bar/8000": StepSeries(84, 2084, 21)}
    assert began_anew(before, {"bar/8000": StepSeries(97, 210, 2)}) is True
    assert began_anew(before, {"bar/8000": StepSeries(300, 410, 2)}) is False


def test_an_agent_that_is_restarted_has_read_only_the_end() -> None:
    known = {"step": StepSeries(1, 5000, 5000), "bar/9": StepSeries(1, 9, REPEATED)}
    now = {"step": StepSeries(4299, 6000, 1700), "bar/9": StepSeries(1, 9, 9)}
    joined = continue_series(known, now)
    assert joined == {"step": StepSeries(1, 6000, 5000), "bar/9": StepSeries(1, 9, REPEATED)}


def test_the_json_form() -> None:
    assert parse_printed_steps(printed_steps_data(BEFORE)) == BEFORE
    many = {f"step/{total}": StepSeries(1, 2, total) for total in range(20)}
    assert [many[key].count for key in largest_series(many)] == [*range(19, 19 - MAX_SERIES, -1)]


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"step": [1, 2]},
        {"step": [1, 2, "3"]},
        {"step": [-1, 2, 3]},
        {"step": [1, float("nan"), 3]},
        {"step": [1, True, 3]},
        {"s" * 61: [1, 2, 3]},
        {"a\nb": [1, 2, 3]},
        {str(number): [1, 2, 3] for number in range(MAX_SERIES + 1)},
    ],
)
def test_what_is_no_json_form_is_refused(value: Any) -> None:
    with pytest.raises(WireError):
        parse_printed_steps(value)
