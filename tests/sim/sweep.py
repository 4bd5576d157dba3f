"""The crash-point sweep: a scenario with n boundaries is played n times, and the daemon dies once
in each, at the first of them, the second, and so on. Exhaustive, not random.

Every write to the store and every call to the outside has a boundary before it and one after it.
Those of writes that repeat themselves all the time, and change nothing that a later daemon would
do, are left out (`IDLE`).
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace

from tests.sim.batch import Sum, play
from tests.sim.quiet import progress, quiet
from tests.sim.run import Case, Result
from tests.sim.scenarios import SCENARIOS


def sweep(scenario: str, tier: str = "memory", processes: int | None = None) -> tuple[int, Sum]:
    """Die at every boundary of the scenario: how many there are, and what all runs add up to."""
    whole = Case(0, "calm", tier, scenario=scenario)
    [undisturbed] = play([whole], 1)
    boundaries = undisturbed.counts["boundaries"]
    total = Sum()
    total.add(undisturbed)
    cases = (replace(whole, die_at=number) for number in range(1, boundaries + 1))
    for result in play(cases, processes):
        total.add(result)
        progress(f"{total.runs - 1} of {boundaries} boundaries", total.runs > boundaries)
    return boundaries, total


def at_one(scenario: str, die_at: int) -> tuple[int, Sum]:
    """Die at that boundary alone (0: at none), as one run of the sweep does."""
    total = Sum()
    [result] = play([Case(0, "calm", scenario=scenario, die_at=die_at)], 1)
    total.add(result)
    return min(die_at, 1), total


def main(scenario: str, as_json: bool, die_at: int | None = None) -> int:
    """Sweep and tell; 1 when something was violated, or somebody did not die. With `die_at` one run
    of it."""
    quiet()
    if scenario not in SCENARIOS:
        print(f"no scenario {scenario!r}: try {', '.join(SCENARIOS)}", file=sys.stderr)
        return 2
    began_s = time.monotonic()
    boundaries, total = sweep(scenario) if die_at is None else at_one(scenario, die_at)
    if as_json:
        bad = [_row(result) for result in total.violations]
        document = {"scenario": scenario, "boundaries": boundaries, "violations": bad}
        print(json.dumps(document, indent=2))
    else:
        print(
            f"{scenario}: {_what(boundaries, die_at)},"
            f" {total.counts['crashes']} deaths, {len(total.violations)} violations"
            f" ({time.monotonic() - began_s:.0f} s, {total.took_s:.0f} CPU s)"
        )
        for result in total.violations:
            print(f"  at boundary {result.case.die_at}: {result.violation}")
            print(*(f"      {line}" for line in result.tail[-15:]), sep="\n")
            print(f"    replay: {result.case.command}")
    return 1 if total.violations or total.counts["crashes"] != boundaries else 0


def _what(boundaries: int, die_at: int | None) -> str:
    alone = "undisturbed" if die_at == 0 else f"died at boundary {die_at} alone"
    return f"died at each of {boundaries} boundaries" if die_at is None else alone


def _row(result: Result) -> dict[str, object]:
    case = result.case
    return {"boundary": case.die_at, "violation": str(result.violation), "replay": case.command}
