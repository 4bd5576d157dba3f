"""Values are read once within their time, and errors are not remembered."""

from __future__ import annotations

import pytest

from providers.timed_cache import TimedCache


def test_a_value_is_read_again_when_its_time_is_over() -> None:
    clock, reads = [0.0], [0]

    def read() -> int:
        reads[0] += 1
        return reads[0]

    cache = TimedCache(lambda: clock[0])
    assert [cache.get("a", read, 10.0), cache.get("a", read, 10.0)] == [1, 1]
    assert cache.get("b", read, 10.0) == 2
    clock[0] = 9.9
    assert cache.get("a", read, 10.0) == 1
    clock[0] = 10.0
    assert cache.get("a", read, 10.0) == 3


def test_the_time_may_follow_from_the_value() -> None:
    values = iter([("part", False), ("all", True), ("more", True)])
    cache = TimedCache(lambda: 0.0)

    def get() -> str:
        return cache.get("a", lambda: next(values), lambda value: 10.0 if value[1] else 0.0)[0]

    assert [get(), get(), get()] == ["part", "all", "all"]


def test_an_error_is_raised_and_the_next_call_reads_again() -> None:
    cache = TimedCache(lambda: 0.0)

    def fail() -> int:
        raise OSError("away")

    with pytest.raises(OSError, match="away"):
        cache.get("a", fail, 10.0)
    assert cache.get("a", lambda: 5, 10.0) == 5
