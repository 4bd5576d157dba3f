"""Many runs on several processes, what they add up to, and what is left of a failure when every
fault that it does not need is switched off."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from tests.sim.quiet import quiet
from tests.sim.run import Case, Result, run
from tests.sim.tiers import TIERS, Open


@dataclass
class Sum:
    """What a batch adds up to."""

    runs: int = 0
    hours: float = 0.0
    took_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    enabled: Counter[str] = field(default_factory=Counter)  # fault -> runs that could meet it
    fired: Counter[str] = field(default_factory=Counter)
    violations: list[Result] = field(default_factory=list)
    trace: str = ""  # a digest of all runs' own

    def add(self, result: Result) -> None:
        self.runs += 1
        self.hours += result.case.hours
        self.took_s += result.took_s
        self.counts += result.counts
        self.enabled.update(result.enabled)
        self.fired += result.fired
        self.trace = blake2b((self.trace + result.trace).encode(), digest_size=16).hexdigest()
        if result.violation is not None:
            self.violations.append(result)

    @property
    def vacuous(self) -> list[str]:
        """Faults that were on in some run and never happened: the batch proves nothing of them."""
        return sorted(name for name in self.enabled if not self.fired[name])


_open: Open
_tier: AbstractContextManager[Open]


def _begin(tier: str) -> None:
    """Each process has a store of its own, for all of its runs."""
    global _open, _tier  # noqa: PLW0603 - what a pool's process is given stays in it
    quiet()
    _tier = TIERS[tier]()
    _open = _tier.__enter__()


def _play(case: Case) -> Result:
    return run(case, _open)


def play(cases: Iterable[Case], tier: str, processes: int | None = None) -> Iterator[Result]:
    """The results as they come, in the order of the cases."""
    wanted = list(cases)
    count = min(processes or os.cpu_count() or 1, len(wanted))
    if count <= 1:
        quiet()
        with TIERS[tier]() as open_store:
            for case in wanted:
                yield run(case, open_store)
        return
    # Not forked: a server that a child starts is to end with that child.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, context, _begin, (tier,)) as pool:
        yield from pool.map(_play, wanted)


def shrink(result: Result) -> Result:
    """Switch one fault after the other off, and keep off what the violation does not need. The
    result fails as well, with the same invariant."""
    assert result.violation is not None
    wanted, tier = result.violation.invariant, result.case.tier
    with TIERS[tier]() as open_store:
        before = None
        while before != result.enabled:
            before = result.enabled
            for name in sorted(before, key=lambda name: result.fired[name]):
                less = replace(result.case, off=result.case.off | {name})
                again = run(less, open_store)
                if again.violation is not None and again.violation.invariant == wanted:
                    result = again
    return result
