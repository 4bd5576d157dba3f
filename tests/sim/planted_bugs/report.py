"""Search for each planted bug, and report which seed finds it and how many were played."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from tests.sim.batch import players
from tests.sim.planted_bugs import BUGS
from tests.sim.planted_bugs.bug import Bug
from tests.sim.quiet import quiet
from tests.sim.run import Case, run
from tests.sim.tiers import memory

FORMS = ("text", "json", "markdown")
PAGE = Path(__file__).parents[3] / "docs" / "planted-bugs.md"
_ROW = re.compile(r"^\| ([^|]+) \| [^|]+ \| [^|]+ \| [^|]* \| (\d+) \|", re.MULTILINE)
_HEAD = """# Planted bugs

Each planted bug is a mistake that a programmer could make. It is added at run time, without a
change to the product's code. The table shows how many seeds the simulator needs until an invariant
of [faults.md](faults.md) detects the bug. If another layer of the product would hide a bug, that
layer is switched off ("without"). Each search starts with seed 0 and stops at the first detection.
`most` is the number of seeds after which `make test` gives up and fails.

The simulator is deterministic, so this table is the same on every machine.
`python -m tests.sim --planted-bugs --form markdown > docs/planted-bugs.md` writes it and plays all
of these seeds. In its other forms, `--planted-bugs` plays the seed from this table first, and the
others only if that one no longer detects the bug.

| planted bug | what it does | profile | without | seeds | most | found as |
|---|---|---|---|---|---|---|"""


@dataclass(frozen=True)
class Found:
    """How a bug was found: by `seed`, by `invariant`; -1 and "" when it was not. `played` are the
    seeds that were: those before it, unless it was known."""

    bug: str
    profile: str
    without: str
    seed: int
    played: int
    invariant: str
    text: str
    took_s: float


def known_seeds() -> dict[str, int]:
    """The seed that found each bug when the page was written."""
    return {name: int(seeds) - 1 for name, seeds in _ROW.findall(PAGE.read_text("utf-8"))}


def hunt(bug: Bug, known: int | None = None) -> Found:
    """Play seeds until one is violated, at most `bug.within`: first the one `known` to be."""
    began_s = time.process_time()
    first = [known] if known is not None and known < bug.within else []
    order = [*first, *(seed for seed in range(bug.within) if seed != known)]
    found, played, invariant, text = -1, 0, "", ""
    with memory() as open_store, bug.planted():
        for seed in order:
            played += 1
            violation = run(Case(seed, bug.profile), open_store).violation
            if violation is not None and violation.invariant in bug.seen_as:
                found, invariant, text = seed, violation.invariant, str(violation)
                break
    took_s = round(time.process_time() - began_s, 1)
    return Found(bug.name, bug.profile, bug.without, found, played, invariant, text, took_s)


def _hunt(known: dict[str, int], number: int) -> Found:
    return hunt(BUGS[number], known.get(BUGS[number].name))


def hunt_all(processes: int, known: dict[str, int]) -> Iterator[Found]:
    """All of them, side by side; in the order of BUGS."""
    if processes == 1:
        quiet()
        yield from (_hunt(known, number) for number in range(len(BUGS)))
        return
    with players(processes) as pool:
        yield from pool.map(partial(_hunt, known), range(len(BUGS)))


def main(form: str, processes: int) -> int:
    """Hunt all of them and tell; 1 when one was not found."""
    known = {} if form == "markdown" else known_seeds()
    if form == "text":
        print(f"{'planted bug':28} {'profile':9} {'without':8} {'seed':>5}  found as", flush=True)
    elif form == "markdown":
        print(_HEAD)
    rows, began_s = [], time.monotonic()
    for bug, row in zip(BUGS, hunt_all(processes, known), strict=True):
        rows.append(row)
        found = row.text or "NOT FOUND"
        if form == "text":
            names = f"{row.bug:28} {row.profile:9} {row.without:8}"
            print(f"{names} {row.seed:5}  {found}", flush=True)
            if row.played > 1:
                print(f"  after {row.played} seeds: run --form markdown again", flush=True)
        elif form == "markdown":
            cells = (row.bug, bug.text, row.profile, row.without, row.played, bug.within)
            print(f"| {' | '.join(map(str, cells))} | {row.invariant or 'NOT FOUND'} |")
    if form == "text":
        cpu_s, wall_s = sum(row.took_s for row in rows), time.monotonic() - began_s
        found = sum(bool(row.invariant) for row in rows)
        print(f"{found} of {len(rows)} found in {wall_s:.0f} s, {cpu_s:.0f} CPU s")
    elif form == "json":
        print(json.dumps([asdict(row) for row in rows], indent=2))
    return 0 if all(row.invariant for row in rows) else 1
