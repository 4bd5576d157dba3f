"""Signals are waited for, and none is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from spotd.daemon.signals import Signals


@pytest.fixture
def signals() -> Iterator[Signals]:
    before = {s: signal.getsignal(s) for s in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)}
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    made = Signals((signal.SIGUSR1, signal.SIGUSR2))
    yield made
    made.close()
    for number, handler in before.items():
        signal.signal(number, handler)


def test_what_came_before_the_wait_began_is_waited_for(signals: Signals) -> None:
    """In order, each time it came; what is ignored stays so, what others handle is theirs."""
    theirs: list[int] = []
    signal.signal(signal.SIGWINCH, lambda number, _: theirs.append(number))
    for number in (signal.SIGUSR2, signal.SIGWINCH, signal.SIGUSR1, signal.SIGUSR1):
        os.kill(os.getpid(), number)
    assert [signals.wait(), signals.wait()] == [signal.SIGUSR1, signal.SIGUSR1]
    assert theirs == [signal.SIGWINCH]
