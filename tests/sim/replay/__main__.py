"""Play recorded spot traces through the simulated daemon and through the bench, and compare.

  python -m tests.sim.replay --traces DIR                            # one case of each suite
  python -m tests.sim.replay --traces DIR --suites S1,M3 --every 40  # one of 40
  python -m tests.sim.replay --traces DIR --suites M1 --case 17      # one, tick by tick
  python -m tests.sim.replay --traces DIR --suites M1 --case 17 --trace   # ... and all that happens

DIR is the folder of `bench/policy.py`. Exit status 1 where the two differ; the first difference of
a case is printed, with what either was told.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from time import monotonic

from tests.sim.quiet import quiet
from tests.sim.replay.bench import by_simulator, played
from tests.sim.replay.compare import Outcome, difference, replayed
from tests.sim.replay.trace import Case, cases

SUITES = ("S1", "S2", "M1", "M2", "M3", "M4")


def main(words: Sequence[str] | None = None) -> int:
    args = _parsed(sys.argv[1:] if words is None else words)
    quiet()
    found: list[Outcome] = []
    for suite in args.suites:
        for case in _chosen(args, suite):
            began_s = monotonic()
            outcome = replayed(case, by_simulator, print if args.trace else None)
            stand_in = difference(case, outcome.ticks, played(case))
            if stand_in:  # what tests play where there is no DIR
                raise AssertionError(f"the stand-in plays otherwise than DIR: {stand_in}")
            found.append(outcome)
            if args.json:
                continue
            if args.case is not None:
                for number, tick in enumerate(outcome.ticks):
                    print(f"  {number:5} {'; '.join(map(str, tick.looks))} | {tick.done}")
            verdict = outcome.difference or (
                f"{case.name}: the same in {len(outcome.ticks)} ticks, {outcome.looks} decisions"
                f" ({outcome.story}; {monotonic() - began_s:.0f} s)"
            )
            print(verdict, flush=True)
    apart = [outcome for outcome in found if outcome.difference]
    if args.json:
        print(json.dumps([outcome.as_json() for outcome in found], indent=1))
    else:
        ticks = sum(len(outcome.ticks) for outcome in found)
        print(f"{len(found)} cases, {ticks:,} ticks: {len(apart)} differ")
    return 1 if apart else 0


def _chosen(args: argparse.Namespace, suite: str) -> Iterator[Case]:
    every = cases(args.traces, suite, args.part)
    if args.case is not None:
        return islice(every, args.case, args.case + 1)
    return islice(every, 0, None, args.every) if args.every else islice(every, 1)


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    head, _, examples = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        "python -m tests.sim.replay",
        description=head,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--traces", type=Path, required=True, metavar="DIR")
    parser.add_argument("--part", default="tune")
    parser.add_argument("--suites", default=",".join(SUITES))
    parser.add_argument("--every", type=int, default=0, metavar="N", help="one case of N")
    parser.add_argument("--case", type=int, metavar="N", help="that case alone, tick by tick")
    parser.add_argument("--trace", action="store_true", help="all that happens: with --case")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(words)
    args.suites = args.suites.split(",")
    unknown = [name for name in args.suites if name not in SUITES]
    if unknown:
        parser.error(f"--suites: {unknown[0]} is none of {', '.join(SUITES)}")
    if not (args.traces / "spotbench" / "suites.py").is_file():
        parser.error(f"--traces: {args.traces} has no spotbench; name the folder of run_bench.py")
    if args.every < 0 or (args.case is not None and args.case < 0):
        parser.error("--every and --case are numbers from 0")
    if args.trace and args.case is None:
        parser.error("--trace shows one case: it goes with --case N")
    return args


if __name__ == "__main__":
    sys.exit(main())
