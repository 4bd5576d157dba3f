"""Seed after seed, for days: `python -m tests.sim.soak --out FILE --seeds 20000`.

FILE keeps what all calls add up to; it is replaced as a whole after every run, so whatever ends a
call, nothing is lost but the runs in flight, and nothing counts twice. Run again, it goes on where
it stopped; another range of seeds (`--from`) adds to the same sum. What a seed plays follows from
its number (`case_of`).

Exit status 1 when FILE has a violation, or a fault that was on and never fired.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import islice
from pathlib import Path
from typing import Any

from tests.sim.batch import attempt, players
from tests.sim.run import Case, Result

# Of a hundred seeds in a row: profile, tier, how many.
MIX = (
    ("swarm", "memory", 33),
    ("gangs", "memory", 4),
    ("lone", "memory", 1),
    ("forgotten", "memory", 1),
    ("two", "memory", 20),
    ("zombies", "memory", 5),
    ("parted", "memory", 2),
    ("unknown", "memory", 4),
    ("stubborn", "memory", 4),
    ("poor", "memory", 4),
    ("restored", "memory", 4),
    ("deserted", "memory", 3),
    ("slow", "memory", 2),
    ("stale", "memory", 2),
    ("gaps", "memory", 2),
    ("fickle", "memory", 1),
    ("abandoned", "memory", 1),
    ("poison", "memory", 1),
    ("late", "memory", 1),
    ("limited", "memory", 2),
    ("littered", "memory", 1),
    ("swarm", "sqlite", 1),
    ("two", "postgresql", 1),
)
_KINDS = [(profile, tier) for profile, tier, many in MIX for _ in range(many)]


def case_of(seed: int, hours: float) -> Case:
    """What a seed plays."""
    profile, tier = _KINDS[seed % len(_KINDS)]
    return Case(seed, profile, tier, hours)


class Total:
    """What is in FILE."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.kept: dict[str, Any] = {
            "done": [],  # ranges of seeds, the last one of each excluded
            "seeds": 0,
            "simulated_hours": 0.0,
            "wall_s": 0.0,
            "cpu_s": 0.0,
            "kinds": {},
            "commits": {},
            "counts": {},
            "enabled": {},
            "fired": {},
            "violations": [],
        }
        if path.exists():
            self.kept |= json.loads(path.read_text())

    def missing(self, seeds: range) -> Iterator[int]:
        """Those that were not played yet."""
        done = [range(*bounds) for bounds in self.kept["done"]]
        return (seed for seed in seeds if not any(seed in played for played in done))

    def add(self, result: Result, commit: str, wall_s: float) -> None:
        """Count a run, and keep the sum."""
        kept, case = self.kept, result.case
        kept["done"] = _with(kept["done"], case.seed)
        kept["seeds"] += 1
        kept["simulated_hours"] += case.hours
        kept["wall_s"] = round(kept["wall_s"] + wall_s, 3)
        kept["cpu_s"] = round(kept["cpu_s"] + result.took_s, 3)
        kind = kept["kinds"].setdefault(f"{case.profile} {case.tier}", {"seeds": 0, "cpu_s": 0.0})
        kind["seeds"] += 1
        kind["cpu_s"] = round(kind["cpu_s"] + result.took_s, 3)
        kept["commits"][commit] = kept["commits"].get(commit, 0) + 1
        for name, more in (("counts", result.counts), ("fired", result.fired)):
            kept[name] = dict(sorted((Counter(kept[name]) + more).items()))
        kept["enabled"] = dict(sorted((Counter(kept["enabled"]) + Counter(result.enabled)).items()))
        if result.violation is not None:
            kept["violations"].append(_row(result, commit))
        self._write()

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self.kept, indent=1) + "\n")
        new.replace(self._path)

    @property
    def vacuous(self) -> list[str]:
        """Faults that were on and never fired."""
        return [name for name in self.kept["enabled"] if not self.kept["fired"].get(name)]

    def table(self) -> str:
        """What it adds up to, for people."""
        kept = self.kept
        wrong = len(kept["violations"])
        pace = kept["seeds"] / max(kept["cpu_s"], 1e-9)
        hours = kept["simulated_hours"]
        lines = [
            f"{kept['seeds']:,} seeds, {hours:,.0f} simulated hours: {wrong} violations",
            f"  {kept['wall_s']:,.0f} s, {kept['cpu_s']:,.0f} CPU s, {pace:.2f} a second and core",
        ]
        for name, kind in sorted(kept["kinds"].items()):
            each_s = kind["cpu_s"] / kind["seeds"]
            lines.append(f"  {name:20} {kind['seeds']:7,} seeds, {each_s:6.2f} CPU s each")
        lines += [
            f"  {name}: {', '.join(f'{what} {count:,}' for what, count in kept[name].items())}"
            for name in ("counts", "fired")
        ]
        lines += [f"  {row['text']}\n    {row['replay']}" for row in kept["violations"]]
        return "\n".join(lines)


def _with(done: Sequence[Sequence[int]], seed: int) -> list[list[int]]:
    """The ranges with one seed more; those that touch become one."""
    merged: list[list[int]] = []
    for first, end in sorted([*map(tuple, done), (seed, seed + 1)]):
        if merged and first <= merged[-1][1]:
            merged[-1][1] = max(end, merged[-1][1])
        else:
            merged.append([first, end])
    return merged


def _row(result: Result, commit: str) -> dict[str, Any]:
    assert result.violation is not None
    return {
        "seed": result.case.seed,
        "invariant": result.violation.invariant,
        "text": f"seed {result.case.seed}: {result.violation}",
        "replay": result.case.command,
        "commit": commit,
        "story": result.tail,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Play what is missing of the range that was asked for."""
    parser = argparse.ArgumentParser("python -m tests.sim.soak", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="file that keeps the sum")
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="S", help="first seed")
    parser.add_argument("--seeds", type=int, default=20_000, metavar="N", help="how many")
    parser.add_argument("--hours", type=float, default=8.0, help="simulated, of each run")
    parser.add_argument("--processes", type=int, default=1, metavar="P")
    options = parser.parse_args(arguments)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            parser.error(f"{options.out} is being written by another soak: wait, or take another")
        total = Total(options.out)
        try:
            seeds = range(options.first, options.first + options.seeds)
            _soak(total, [case_of(seed, options.hours) for seed in total.missing(seeds)], options)
        except KeyboardInterrupt:
            print("interrupted: the same command goes on from here")
            return 130
    print(total.table())
    if total.vacuous:
        print(f"on, and never fired: {', '.join(total.vacuous)}", file=sys.stderr)
    return 1 if total.kept["violations"] or total.vacuous else 0


def _soak(total: Total, cases: Sequence[Case], options: argparse.Namespace) -> None:
    print(f"{options.seeds - len(cases):,} of {options.seeds:,} seeds are done", flush=True)
    commit, kept_s = _commit(), time.monotonic()
    in_flight = set[Future[Result]]()
    with players(options.processes) as pool:
        left = iter(cases)
        while True:
            for case in islice(left, options.processes - len(in_flight)):
                in_flight.add(pool.submit(attempt, case))
            if not in_flight:
                return
            done, in_flight = wait(in_flight, return_when=FIRST_COMPLETED)
            for future in done:
                now_s = time.monotonic()
                _keep(total, future.result(), commit, now_s - kept_s)
                kept_s = now_s


def _keep(total: Total, result: Result, commit: str, wall_s: float) -> None:
    total.add(result, commit, wall_s)
    if result.violation is not None:
        print(f"{total.kept['violations'][-1]['text']}\n  {result.case.command}", flush=True)
    if total.kept["seeds"] % 100 == 0:
        print(total.table().splitlines()[0], flush=True)


def _commit() -> str:
    """What the runs are runs of."""
    command = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    here = Path(__file__).parent
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
