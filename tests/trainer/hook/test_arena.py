"""Memory that two processes share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from trainer.hook.spotd_hook.arena import PAGE, Arena, ArenaError, Told, make_memory


@pytest.fixture
def pair() -> Iterator[tuple[Arena, Arena]]:
    fd = make_memory(PAGE + 1, 2)
    ours, theirs = Arena(fd, PAGE + 1, 2), Arena(fd, PAGE + 1, 2)
    os.close(fd)
    yield ours, theirs
    ours.close()
    theirs.close()


def test_both_see_the_same_and_slots_do_not_touch(pair: tuple[Arena, Arena]) -> None:
    ours, theirs = pair
    assert ours.fault_in()
    with ours.slot(0) as first, ours.slot(1) as second:
        first[:] = b"\1" * (PAGE + 1)
        second[:] = b"\2" * (PAGE + 1)
    with theirs.slot(0) as first, theirs.slot(1) as second, theirs.padded(0) as padded:
        assert bytes(first) == b"\1" * (PAGE + 1)
        assert bytes(second) == b"\2" * (PAGE + 1)
        assert len(padded) == 2 * PAGE
        assert not any(padded[PAGE + 1 :])
    with pytest.raises(ValueError, match="slot 2 of 2"):
        ours.slot(2)


def test_words_are_heard_at_the_other_end(pair: tuple[Arena, Arena]) -> None:
    ours, theirs = pair
    assert (ours.filled(0), ours.fenced, ours.told) == (0, False, Told(committed=-1))
    ours.set_filled(1, 17)
    ours.set_staged_us(1, 9)
    assert (theirs.filled(0), theirs.filled(1), theirs.staged_us(1)) == (0, 17, 9)
    told = Told(True, 0, 1, 2, 3, 4, True, 5, 6)
    theirs.tell(told)
    assert ours.fenced
    assert ours.told == told
    theirs.tell(Told())
    assert ours.told == Told()


def test_faulting_in_can_be_called_off(pair: tuple[Arena, Arena]) -> None:
    assert not pair[0].fault_in(lambda: False)


@pytest.mark.parametrize(("size", "slots"), [(0, 1), (1, 0), (1, 17), (1 << 62, 2)])
def test_what_cannot_be_had_is_said(size: int, slots: int) -> None:
    with pytest.raises(ArenaError):
        make_memory(size, slots)
