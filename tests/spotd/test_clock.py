"""Time and identity."""

import re
import time

import pytest

from spotd.clock import RandomIds, SystemClock
from spotd.model import S


def test_the_system_clock_counts_microseconds_of_unix_time() -> None:
    clock = SystemClock()
    before, now_us, after = time.time(), clock.now_us(), time.time()
    assert before - 0.001 <= now_us / 1e6 <= after + 0.001


def test_a_clock_goes_on_from_what_is_on_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: int(wall_s * 1e9))
    monkeypatch.setattr(time, "monotonic_ns", lambda: int(wall_s * 1e9))
    wall_s = 1000.0
    clock = SystemClock()
    assert clock.not_before(999 * S) == 0
    assert clock.now_us() == 1000 * S
    assert clock.not_before(4600 * S) == 3600 * S
    assert clock.now_us() == 4600 * S
    wall_s = 1001.0
    assert clock.now_us() == 4601 * S


def test_a_clock_that_is_set_back_does_not_take_ours_back(monkeypatch: pytest.MonkeyPatch) -> None:
    wall_s, ticks_s = [1000.0], [5.0]
    monkeypatch.setattr(time, "time_ns", lambda: int(wall_s[0] * 1e9))
    monkeypatch.setattr(time, "monotonic_ns", lambda: int(ticks_s[0] * 1e9))
    clock = SystemClock()

    def after(passed_s: float, jump_s: float) -> float:
        wall_s[0] += passed_s + jump_s
        ticks_s[0] += passed_s
        return clock.now_us() / 1e6

    assert after(0.0, 0.0) == 1000.0
    assert after(1.0, 0.0) == 1001.0
    assert after(1.0, -3600.0) == 1002.0, "a second passed, and no more"
    assert after(10.0, 0.0) == 1012.0
    assert after(1.0, 3600.0) == 1013.0, "set right again"
    assert after(1.0, 600.0) == 1614.0, "forward, as after a suspension: that time is paid for"


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
