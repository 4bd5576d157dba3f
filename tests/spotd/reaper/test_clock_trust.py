"""Whether the reaper believes the clock of its machine: a step ahead ends nobody's fleet."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotd.base.clock import BELIEF_S
from spotd.config.schedule import Schedule
from spotd.domain.units import S
from spotd.planner.core.reaper_policy import SKEW_S
from spotd.reaper.clock_trust import DOUBT_S, ClockTrust, Moment

DAY_S = 86_400.0
ROUND_S = 300.0  # between two rounds of the timer


class Machine:
    """A machine with a clock; each `round` is a reaper of its own, as a timer starts it."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.wall_s, self.ticks_s = 1_900_000_000.0, 1000.0

    def clocks(self) -> Moment:
        return int(self.wall_s * S), int(self.ticks_s * S)

    def round(self, trust: ClockTrust | None = None) -> float:
        """For how long the clock is not believed, seconds."""
        trust = trust or ClockTrust(self.folder, self.clocks)
        now_us, wait_s = trust.look()
        assert now_us == int(self.wall_s * S)
        assert trust.keep() == ""
        self.wall_s += ROUND_S
        self.ticks_s += ROUND_S
        return wait_s


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """One whose clock is believed."""
    made = Machine(tmp_path)
    while made.round():
        pass
    return made


@pytest.mark.parametrize("kept", [True, False])
def test_a_clock_that_nobody_knows_has_to_stay_as_it_is(tmp_path: Path, kept: bool) -> None:
    """Whoever installs a reaper on a box whose clock is wrong loses no fleet."""
    first = Machine(tmp_path if kept else None)
    trust = None if kept else ClockTrust(None, first.clocks)
    waits = [first.round(trust) for _ in range(5)]
    assert waits == [DOUBT_S - at * ROUND_S for at in range(5)]
    assert waits[-1] == 0


def test_a_clock_that_goes_as_it_should_is_believed(machine: Machine) -> None:
    for _ in range(5):
        assert machine.round() == 0
        machine.wall_s += SKEW_S - 1  # steered


def test_a_clock_that_was_set_ahead_is_believed_when_it_has_stayed_so(machine: Machine) -> None:
    machine.round()
    machine.wall_s += 25 * 3600
    waits = [machine.round() for _ in range(5)]
    assert waits == [DOUBT_S, DOUBT_S - ROUND_S, DOUBT_S - 2 * ROUND_S, DOUBT_S - 3 * ROUND_S, 0]
    assert machine.round() == 0


def test_one_that_is_set_ahead_again_has_to_stay_so_again(machine: Machine) -> None:
    machine.round()
    for _ in range(3):
        machine.wall_s += 3600
        assert machine.round() == DOUBT_S


def test_a_clock_that_is_set_back_ends_nobody_and_is_believed(machine: Machine) -> None:
    machine.round()
    machine.wall_s -= 10 * DAY_S
    assert machine.round() == 0


@pytest.mark.parametrize("uptime_s", [30.0, 40_000.0])
def test_after_a_start_of_the_machine_it_has_to_stay_so(machine: Machine, uptime_s: float) -> None:
    """It was off for three days, or its clock says so."""
    machine.round()
    machine.wall_s += 3 * DAY_S
    machine.ticks_s = uptime_s
    assert machine.round() == DOUBT_S


def test_a_machine_that_slept_was_there_all_the_time(machine: Machine) -> None:
    machine.round()
    machine.wall_s += 3 * DAY_S
    machine.ticks_s += 3 * DAY_S
    assert machine.round() == 0


def test_a_start_within_the_doubt_does_not_make_it_endless(machine: Machine) -> None:
    machine.round()
    machine.wall_s += DAY_S
    machine.round()
    machine.ticks_s = 10.0
    waits = [machine.round() for _ in range(5)]
    assert waits[0] == DOUBT_S
    assert waits[-1] == 0


def test_a_program_that_goes_round_for_ever_needs_no_folder() -> None:
    machine = Machine(None)
    trust = ClockTrust(None, machine.clocks)
    while machine.round(trust):
        pass
    machine.wall_s += DAY_S
    assert trust.look()[1] == DOUBT_S
    assert trust.keep() == ""


@pytest.mark.parametrize(
    "words", ["", "{", "[]", '{"ahead_us": "x", "since_us": true}', "[" * 9999]
)
def test_a_memory_that_cannot_be_read_is_none(machine: Machine, tmp_path: Path, words: str) -> None:
    (tmp_path / "clock.json").write_text(words)
    assert machine.round() == DOUBT_S


def test_a_memory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    assert "cannot be written" in ClockTrust(tmp_path / "not-there").keep()


def test_the_daemon_has_renewed_what_is_wanted_before_the_reaper_believes() -> None:
    assert BELIEF_S + Schedule().expiry_s + ROUND_S <= DOUBT_S
