"""How many seeds each planted bug takes."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass

from tests.sim.quiet import quiet
from tests.sim.run import Case, run
from tests.sim.tiers import memory
from tests.sim.zoo import BUGS
from tests.sim.zoo.bug import Bug


@dataclass(frozen=True)
class Found:
    """How a bug was found: after `seeds` seeds, by `invariant`; "" when it was not."""

    bug: str
    profile: str
    without: str
    seeds: int
    invariant: str
    text: str
    took_s: float


def hunt(bug: Bug, first: int = 0, most: int | None = None) -> Found:
    """Play seeds until one is violated, at most `bug.within`."""
    began_s = time.process_time()
    seeds, invariant, text = 0, "", ""
    with memory() as open_store, bug.planted():
        for seed in range(first, first + (most or bug.within)):
            seeds += 1
            violation = run(Case(seed, bug.profile), open_store).violation
            if violation is not None and violation.invariant in bug.seen_as:
                invariant, text = violation.invariant, str(violation)
                break
    took_s = time.process_time() - began_s
    return Found(bug.name, bug.profile, bug.without, seeds, invariant, text, round(took_s, 1))


def main(as_json: bool) -> int:
    """Hunt all of them; 1 when one was not found."""
    quiet()
    rows = []
    if not as_json:
        print(f"{'planted bug':28} {'profile':9} {'without':8} {'seeds':>5}  found as")
    for bug in BUGS:
        row = hunt(bug)
        rows.append(row)
        if not as_json:
            found = row.text or "NOT FOUND"
            print(f"{row.bug:28} {row.profile:9} {row.without:8} {row.seeds:5}  {found}")
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    return 0 if all(row.invariant for row in rows) else 1
