"""Many runs on several processes, what they add up to, and what is left of a failure when every
fault that it does not need is switched off."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from multiprocessing import connection
from multiprocessing.util import Finalize

from tests.sim.oracles import Violation
from tests.sim.quiet import quiet
from tests.sim.run import Case, Result, run
from tests.sim.tiers import TIERS, Open

ENOUGH = 40  # runs from which on a fault that never fired is a mistake
OFTEN = 5.0  # ... as is one that was so often to be expected, in however few
GARBAGE = 500_000  # objects until it is looked for: what some five runs leave, and no run waits for


@dataclass
class Sum:
    """What a batch adds up to."""

    runs: int = 0
    hours: float = 0.0
    took_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    enabled: Counter[str] = field(default_factory=Counter)  # fault -> runs that could meet it
    fired: Counter[str] = field(default_factory=Counter)
    expected: dict[str, float] = field(default_factory=dict)  # how often each should have fired
    violations: list[Result] = field(default_factory=list)
    trace: str = ""  # a digest of all runs' own

    def add(self, result: Result) -> None:
        self.runs += 1
        self.hours += result.case.hours
        self.took_s += result.took_s
        self.counts += result.counts
        self.enabled.update(result.enabled)
        self.fired += result.fired
        for name, count in result.expected.items():
            self.expected[name] = self.expected.get(name, 0.0) + count
        self.trace = blake2b((self.trace + result.trace).encode(), digest_size=16).hexdigest()
        if result.violation is not None:
            self.violations.append(result)

    @property
    def vacuous(self) -> list[str]:
        """Faults that were on in some run and never happened: the batch proves nothing of them."""
        return sorted(name for name in self.enabled if not self.fired[name])

    @property
    def amiss(self) -> list[str]:
        """Those of them that should have: in a batch of `ENOUGH` runs all, in a smaller one those
        whose strength has them fire `OFTEN` times in it."""
        few = self.runs < ENOUGH
        return [n for n in self.vacuous if not few or self.expected.get(n, 0.0) >= OFTEN]


_opened: dict[str, Open] = {}
_stores = ExitStack()


def attempt(case: Case) -> Result:
    """Play one case on this process's own store of its tier. What the product raises and nobody
    catches is a violation like any other."""
    if case.tier not in _opened:
        _opened[case.tier] = _stores.enter_context(TIERS[case.tier]())
    try:
        return run(case, _opened[case.tier])
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        violation = Violation("raised", 0.0, f"{type(error).__name__}: {error}")
        return Result(case, violation, tail=traceback.format_exc().splitlines())


def close_stores() -> None:
    """End what this process has opened for its cases."""
    _stores.close()
    _opened.clear()


@contextmanager
def players(count: int) -> Iterator[ProcessPoolExecutor]:
    """Processes for `attempt`; none of them outlives this one, however it ends."""
    # Not forked: a server that a child starts is to end with that child.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, context, _begin) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _begin() -> None:
    quiet()
    _collect_seldom()
    Finalize(None, close_stores, exitpriority=10)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _collect_seldom() -> None:
    gc.freeze()  # what was imported stays
    gc.set_threshold(GARBAGE)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0))


def play(cases: Iterable[Case], processes: int | None = None) -> Iterator[Result]:
    """The results as they come, in the order of the cases."""
    wanted = list(cases)
    count = min(processes or cores(), len(wanted))
    if count > 1:
        with players(count) as pool:
            yield from pool.map(attempt, wanted)
        return
    quiet()
    before = gc.get_threshold()
    _collect_seldom()
    try:
        yield from map(attempt, wanted)
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
        close_stores()


def shrink(result: Result) -> Result:
    """Switch one fault after the other off, and keep off what the violation does not need. The
    result fails as well, with the same invariant."""
    assert result.violation is not None
    wanted = result.violation.invariant
    try:
        before = None
        while before != result.enabled:
            before = result.enabled
            for name in sorted(before, key=lambda name: result.fired[name]):
                less = replace(result.case, off=result.case.off | {name})
                again = attempt(less)
                if again.violation is not None and again.violation.invariant == wanted:
                    result = again
    finally:
        close_stores()
    return result
