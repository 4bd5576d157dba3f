"""Time and identity."""

import re
import time

from spotd.base.clock import BELIEF_S, STEP_S, RandomIds, SystemClock
from spotd.domain.units import S


def test_the_system_clock_counts_microseconds_of_unix_time() -> None:
    clock = SystemClock()
    before, now_us, after = time.time(), clock.now_us(), time.time()
    assert before - 0.001 <= now_us / 1e6 <= after + 0.001


class Box:
    """A machine whose two clocks are set by hand, in seconds."""

    def __init__(self) -> None:
        self.wall_s, self.ticks_s = 1000.0, 5.0
        self.clock = SystemClock(lambda: int(self.wall_s * 1e9), lambda: int(self.ticks_s * 1e9))

    def after(self, passed_s: float, jump_s: float = 0.0) -> float:
        """What our clock shows then."""
        self.wall_s += passed_s + jump_s
        self.ticks_s += passed_s
        return self.clock.now_us() / 1e6


def test_a_clock_goes_on_from_what_is_on_record() -> None:
    box = Box()
    assert box.clock.not_before(999 * S) == 0
    assert box.clock.now_us() == 1000 * S
    assert box.clock.not_before(4600 * S) == 3600 * S
    assert box.clock.now_us() == 4600 * S
    assert box.after(1.0) == 4601.0


def test_a_clock_that_is_set_back_does_not_take_ours_back() -> None:
    box = Box()
    assert box.after(1.0) == 1001.0
    assert box.after(1.0, -3600.0) == 1002.0, "a second passed, and no more"
    assert box.after(10.0) == 1012.0
    assert box.after(1.0, 3600.0) == 1013.0, "set right again"


def test_a_clock_that_is_set_ahead_for_a_while_takes_ours_nowhere() -> None:
    box = Box()
    assert box.after(1.0, 3600.0) == 1001.0
    assert box.after(BELIEF_S - 1) == 1000.0 + BELIEF_S
    assert box.after(1.0, -3600.0) == 1001.0 + BELIEF_S, "set right again"
    assert box.after(1.0, 3600.0) == 1002.0 + BELIEF_S, "and wrong: that is a new doubt"
    assert box.after(BELIEF_S) == 1002.0 + 2 * BELIEF_S


def test_a_clock_that_stays_ahead_is_right() -> None:
    """The machine had stood still as a whole, and what it rents did not."""
    box = Box()
    box.after(1.0, 600.0)
    assert box.after(BELIEF_S + 1) == 1602.0 + BELIEF_S


def test_a_clock_that_is_steered_is_followed() -> None:
    box = Box()
    assert box.after(1.0, STEP_S) == 1001.0 + STEP_S


def test_a_suspension_counts_at_once() -> None:
    """The ticks go on meanwhile."""
    assert Box().after(3600.0) == 4600.0


def test_monotonic_time_advances_by_what_was_slept() -> None:
    clock = SystemClock()
    start_s = clock.monotonic_s()
    clock.sleep(0.01)
    assert clock.monotonic_s() - start_s >= 0.01


def test_ids_have_their_shape_and_differ() -> None:
    ids = RandomIds()
    jobs = {ids.job_id() for _ in range(200)}
    assert len(jobs) == 200
    assert all(re.fullmatch(r"j[a-z2-7]{9}", job) for job in jobs)
    assert re.fullmatch(r"[0-9a-f]{32}", ids.token())
    assert ids.token() != ids.token()
    assert len(ids.random_bytes(7)) == 7
