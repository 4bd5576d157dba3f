"""Calls to whatever is outside of a process, as a network makes them.

The other side acts when the request arrives, whether or not the caller still waits, lives, or
ever hears of it: that is where duplicates, leaks and late writes come from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from tests.sim.faults import Faults
from tests.sim.kernel import Kernel

T = TypeVar("T")


class _Answer(Generic[T]):
    """What the other side said, once it has."""

    def __init__(self) -> None:
        self.value: T | None = None
        self.error: Exception | None = None
        self.there = False


class Net:
    """The network of a run. `boundary(what)` is told before and after every call: there its
    process may die, freeze, or be overtaken."""

    def __init__(self, kernel: Kernel, faults: Faults, boundary: Callable[[str], None]) -> None:
        self._kernel = kernel
        self._faults = faults
        self._boundary = boundary
        self._latency = faults.stream("latency")

    def call(
        self,
        what: str,
        kind: str,
        act: Callable[[], T],
        *,
        limit_s: float,
        lost: Callable[[str], Exception],
        errors: type[Exception] | tuple[type[Exception], ...],
        reachable: Callable[[], bool] = lambda: True,
    ) -> T:
        """Have the other side `act`; its answer, or its error. Raises `lost(text)` when no answer
        came within `limit_s`.

        `errors` are those that the other side may answer with; any other is a bug of the
        simulation, and ends it. `kind` is whose faults these are: `<kind>_request_lost`,
        `<kind>_reply_lost`, `<kind>_slow`. Nothing passes while not `reachable`.
        """
        kernel, faults = self._kernel, self._faults
        self._boundary(f"before {what}")
        task, answer = kernel.task(), _Answer[T]()
        there_s = self._latency.uniform(0.005, 0.05)
        if faults.strikes(f"{kind}_slow"):
            there_s = faults.stream(f"{kind}_slow").uniform(0.5, 2.5) * limit_s
        request_lost = faults.strikes(f"{kind}_request_lost")
        reply_lost = faults.strikes(f"{kind}_reply_lost")
        back_s = self._latency.uniform(0.005, 0.05)

        def arrive() -> None:
            if not reachable():
                return
            try:
                answer.value = act()
            except errors as error:
                answer.error = error
            if not reply_lost:
                kernel.after(back_s, hear)

        def hear() -> None:
            if reachable():
                answer.there = True
                kernel.wake(task)

        if not request_lost:
            kernel.after(there_s, arrive)
        end_us = kernel.now_us + int(limit_s * 1e6)
        while not answer.there and kernel.now_us < end_us:
            kernel.wait_until(end_us)
        self._boundary(f"after {what}")
        if not answer.there:
            raise lost(f"no answer within {limit_s:g} s")
        if answer.error is not None:
            raise answer.error
        return answer.value  # type: ignore[return-value]
