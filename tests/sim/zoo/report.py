"""How many seeds each planted bug takes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from tests.sim.batch import players
from tests.sim.quiet import quiet
from tests.sim.run import Case, run
from tests.sim.tiers import memory
from tests.sim.zoo import BUGS
from tests.sim.zoo.bug import Bug

FORMS = ("text", "json", "markdown")
_HEAD = """# The zoo

Bugs that a programmer could make, planted one at a time from outside of the product's code, and how
many seeds the simulator needs until an invariant of [faults.md](faults.md) tells of each. Where a
layer above would hide a bug, it is switched off ("without"). Each hunt begins with seed 0 and ends
with the first find; `most` is the number of seeds at which `make test` fails. The
simulator is deterministic: everybody gets this table, whatever the machine. It is written by
`python -m tests.sim --zoo --form markdown > docs/zoo.md`.

| planted bug | what it does | profile | without | seeds | most | found as |
|---|---|---|---|---|---|---|"""


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


def hunt(bug: Bug) -> Found:
    """Play seeds until one is violated, at most `bug.within`."""
    began_s = time.process_time()
    seeds, invariant, text = 0, "", ""
    with memory() as open_store, bug.planted():
        for seed in range(bug.within):
            seeds += 1
            violation = run(Case(seed, bug.profile), open_store).violation
            if violation is not None and violation.invariant in bug.seen_as:
                invariant, text = violation.invariant, str(violation)
                break
    took_s = time.process_time() - began_s
    return Found(bug.name, bug.profile, bug.without, seeds, invariant, text, round(took_s, 1))


def _hunt(number: int) -> Found:
    return hunt(BUGS[number])


def hunt_all(processes: int) -> Iterator[Found]:
    """All of them, side by side; in the order of BUGS."""
    if processes == 1:
        quiet()
        yield from map(hunt, BUGS)
        return
    with players(processes) as pool:
        yield from pool.map(_hunt, range(len(BUGS)))


def main(form: str, processes: int) -> int:
    """Hunt all of them and tell; 1 when one was not found."""
    if form == "text":
        print(f"{'planted bug':28} {'profile':9} {'without':8} {'seeds':>5}  found as", flush=True)
    elif form == "markdown":
        print(_HEAD)
    rows, began_s = [], time.monotonic()
    for bug, row in zip(BUGS, hunt_all(processes), strict=True):
        rows.append(row)
        found = row.text or "NOT FOUND"
        if form == "text":
            names = f"{row.bug:28} {row.profile:9} {row.without:8}"
            print(f"{names} {row.seeds:5}  {found}", flush=True)
        elif form == "markdown":
            cells = (row.bug, bug.text, row.profile, row.without, row.seeds, bug.within)
            print(f"| {' | '.join(map(str, cells))} | {row.invariant or 'NOT FOUND'} |")
    if form == "text":
        cpu_s, wall_s = sum(row.took_s for row in rows), time.monotonic() - began_s
        found = sum(bool(row.invariant) for row in rows)
        print(f"{found} of {len(rows)} found in {wall_s:.0f} s, {cpu_s:.0f} CPU s")
    elif form == "json":
        print(json.dumps([asdict(row) for row in rows], indent=2))
    return 0 if all(row.invariant for row in rows) else 1
