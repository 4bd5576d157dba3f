"""No test holds the run up: one that does not end after its limit goes with its process.

pytest-timeout raises in the test when its time is up, so that its fixtures end what they started.
Where those do not come back either (a program that ignores its signal is waited for), this prints
the name and every thread's stack, ends all processes of the test, and leaves; pytest-xdist counts
the test as failed and goes on with a new worker.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.rigs.processes import below, carrying

GRACE_S = 60.0  # for the fixtures of a test whose time was up
END_S = 120.0  # for what comes after the last test
EXIT_CODE = 1


class Watchdog:
    """One thread, for the test that runs now."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._name, self._limit_s, self._end_s = "", 0.0, 0.0
        self._stderr = os.dup(2)  # while a test runs, pytest has put a file of its own there
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def watch(self, name: str, limit_s: float) -> None:
        """From now on it is `name` that has so long."""
        with self._changed:
            self._name, self._limit_s = name, limit_s
            self._end_s = time.monotonic() + limit_s
            self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while not self._name or (left_s := self._end_s - time.monotonic()) > 0:
                self._changed.wait(left_s if self._name else None)
            limit = f"{self._limit_s:g} s"
            text = f"\n{self._name} did not end within {limit}: it goes with all its processes\n"
            os.write(self._stderr, text.encode())
            faulthandler.dump_traceback(self._stderr)
            end(self._name)


def end(name: str) -> None:
    """This process, and all that the test has started, wherever it went."""
    started = [
        pid
        for phase in ("setup", "call", "teardown")
        for pid in carrying("PYTEST_CURRENT_TEST", f"{name} ({phase})")
    ]
    for pid in {*below(os.getpid()), *started} - {os.getpid()}:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    os._exit(EXIT_CODE)


_WATCHDOG = pytest.StashKey[Watchdog]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_WATCHDOG] = Watchdog()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    marker, config = item.get_closest_marker("timeout"), item.config
    asked = config.getoption("timeout")  # of the command line: None where it says nothing
    limit = config.getini("timeout") if asked is None else asked
    limit = float(marker.args[0] if marker and marker.args else limit)
    # 0 is pytest-timeout's word for no limit.
    config.stash[_WATCHDOG].watch(item.nodeid, limit + GRACE_S if limit else threading.TIMEOUT_MAX)
    return (yield)


def pytest_unconfigure(config: pytest.Config) -> None:
    """With several workers their parent runs no test, and waits for all of them."""
    config.stash[_WATCHDOG].watch("the end of the run", END_S)


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, sched: Any) -> None:
    """Where tests go to workers by groups, pytest-xdist would begin again with the one whose worker
    has just ended, as often as it may."""
    for scope, unit in list(sched.workqueue.items()):
        if crashitem in unit:
            unit[crashitem] = True
            if all(unit.values()):
                del sched.workqueue[scope]
