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


def main(scenario: str, as_json: bool) -> int:
    """Sweep and tell; 1 when something was violated, or somebody did not die."""
    quiet()
    if scenario not in SCENARIOS:
        print(f"no scenario {scenario!r}: try {', '.join(SCENARIOS)}", file=sys.stderr)
        return 2
    began_s = time.monotonic()
    boundaries, total = sweep(scenario)
    if as_json:
        bad = [_row(result) for result in total.violations]
        document = {"scenario": scenario, "boundaries": boundaries, "violations": bad}
        print(json.dumps(document, indent=2))
    else:
        print(
            f"{scenario}: died at each of {boundaries} boundaries,"
            f" {total.counts['crashes']} deaths, {len(total.violations)} violations"
            f" ({time.monotonic() - began_s:.0f} s, {total.took_s:.0f} CPU s)"
        )
        for result in total.violations:
            print(f"  at boundary {result.case.die_at}: {result.violation}")
            print(*(f"      {line}" for line in result.tail[-15:]), sep="\n")
    return 1 if total.violations or total.counts["crashes"] != boundaries else 0


def _row(result: Result) -> dict[str, object]:
    return {"boundary": result.case.die_at, "violation": str(result.violation)}
