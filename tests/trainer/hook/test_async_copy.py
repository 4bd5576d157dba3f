"""A snapshot that is copied beside training."""

from __future__ import annotations

import threading

import pytest

from tests.fixtures.waiting import LIMIT_S
from trainer.hook.spotd_hook.async_copy import AsyncCopy


def test_it_copies_meanwhile_and_is_waited_for() -> None:
    beside, go_on, done = AsyncCopy(), threading.Event(), []

    def copy() -> None:
        assert go_on.wait(LIMIT_S)
        done.append(threading.current_thread().name)

    beside.wait()
    beside.begin(copy)
    with pytest.raises(RuntimeError, match="wait for the copy before"):
        beside.begin(copy)
    assert not done
    go_on.set()
    beside.wait()
    assert done == ["stage"]
    beside.wait()


def test_what_a_copy_raises_is_raised_where_it_is_waited_for_once() -> None:
    beside = AsyncCopy()
    beside.begin([].pop)
    with pytest.raises(IndexError):
        beside.wait()
    beside.wait()
