"""Time and identity."""

import re
import time

from spotd.clock import RandomIds, SystemClock


def test_the_system_clock_counts_microseconds_of_unix_time() -> None:
    clock = SystemClock()
    before, now_us, after = time.time(), clock.now_us(), time.time()
    assert before - 0.001 <= now_us / 1e6 <= after + 0.001


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
