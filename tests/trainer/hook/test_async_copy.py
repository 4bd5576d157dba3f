"""Copying a snapshot in parallel to training."""

from __future__ import annotations

import threading

import pytest

from tests.fixtures.waiting import LIMIT_S
from trainer.hook.spotd_hook.async_copy import AsyncCopy


def test_it_copies_meanwhile_and_is_waited_for() -> None:
    async_copy, may_continue, done = AsyncCopy(), threading.Event(), []

    def copy() -> None:
        assert may_continue.wait(LIMIT_S)
        done.append(threading.current_thread().name)

    async_copy.wait()
    async_copy.begin(copy)
    with pytest.raises(RuntimeError, match="wait for the copy before"):
        async_copy.begin(copy)
    assert not done
    may_continue.set()
    async_copy.wait()
    assert done == ["stage"]
    async_copy.wait()


def test_what_a_copy_raises_is_raised_where_it_is_waited_for_once() -> None:
    async_copy = AsyncCopy()
    async_copy.begin([].pop)
    with pytest.raises(IndexError):
        async_copy.wait()
    async_copy.wait()
