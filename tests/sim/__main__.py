"""`python -m tests.sim`: play many seeds, or one again.

  python -m tests.sim --seeds 500                      # a batch in memory
  python -m tests.sim --seeds 40 --tier sqlite --profile two
  python -m tests.sim --seeds 1 --from 4711 --trace    # what happens in one, as it does
  python -m tests.sim --planted-bugs                            # is every planted bug found?
  python -m tests.sim --sweep preempted                # die before and after everything
  python -m tests.sim --sweep preempted --die-at 17    # ... and at the 17th of them alone

Exit status 1 when something was violated, when a fault that was on never fired in the whole batch
(in one of less than 40 runs: when it was to be expected five times), or when a planted bug was not
found.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator

from tests.sim import sweep
from tests.sim.batch import Sum, cores, play, shrink
from tests.sim.planted_bugs import report as planted_bugs
from tests.sim.planted_bugs.report import FORMS
from tests.sim.profiles import PROFILES
from tests.sim.quiet import progress, quiet
from tests.sim.run import Case, Result, run
from tests.sim.tiers import TIERS


def main(argv: list[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(argv)
    if args.trace and (args.seeds != 1 or args.json or args.planted_bugs or args.sweep):
        parser.error("--trace shows one run, line by line: it goes with --seeds 1 alone")
    if args.die_at is not None and not args.sweep:
        parser.error("--die-at is a boundary of a sweep: it goes with --sweep")
    if args.planted_bugs:
        return planted_bugs.main("json" if args.json else args.form, args.processes or cores())
    if args.sweep:
        return sweep.main(args.sweep, args.json, args.die_at)
    return _batch(args)


def _batch(args: argparse.Namespace) -> int:
    seeds = range(args.first, args.first + args.seeds)
    off = frozenset(args.off)
    cases = [Case(seed, args.profile, args.tier, args.hours, off) for seed in seeds]
    total, began_s = Sum(), time.monotonic()
    for result in _traced(cases) if args.trace else play(cases, args.processes):
        total.add(result)
        if result.violation is not None:
            _tell(shrink(result) if args.shrink else result)
        if not args.json:
            progress(f"{total.runs} of {len(cases)} runs", total.runs == len(cases))
    wall_s = time.monotonic() - began_s
    _print_json(total, wall_s) if args.json else _print(total, wall_s)
    amiss = total.amiss
    rare = [name for name in total.vacuous if name not in amiss]
    if rare and not args.json:
        print(f"  never fired, in too few runs to be a mistake: {', '.join(rare)}")
    if amiss:
        print(f"on, and never fired: {', '.join(amiss)}", file=sys.stderr)
    return 1 if total.violations or amiss else 0


def _traced(cases: list[Case]) -> Iterator[Result]:
    """Played here, and told as they go."""
    quiet()
    for case in cases:
        with TIERS[case.tier]() as open_store:
            yield run(case, open_store, print)


def _tell(result: Result) -> None:
    """Everything that one needs to look into a failure."""
    case = result.case
    print(f"\nseed {case.seed}: {result.violation}", file=sys.stderr)
    for line in result.tail:
        print(f"    {line}", file=sys.stderr)
    on = ", ".join(f"{name} {result.fired[name]}x" for name in sorted(result.fired))
    print(f"  faults that fired: {on or 'none'}", file=sys.stderr)
    print(f"  replay: {case.command}", file=sys.stderr)


def _print(total: Sum, wall_s: float) -> None:
    each_s = total.took_s / max(total.runs, 1)
    print(
        f"{total.runs} runs, {total.hours:,.0f} simulated hours in {wall_s:.0f} s,"
        f" {total.took_s:.0f} CPU s ({1 / max(each_s, 1e-9):.2f} runs a second and core):"
        f" {len(total.violations)} violations"
    )
    counts = ", ".join(f"{value:,} {name}" for name, value in sorted(total.counts.items()))
    print(f"  {counts}")
    fired = ", ".join(f"{name} {count:,}" for name, count in sorted(total.fired.items()))
    print(f"  faults: {fired}")


def _print_json(total: Sum, wall_s: float) -> None:
    document = {
        "runs": total.runs,
        "simulated_hours": total.hours,
        "wall_s": round(wall_s, 1),
        "cpu_s": round(total.took_s, 1),
        "counts": dict(total.counts),
        "fired": dict(total.fired),
        "enabled": dict(total.enabled),
        "vacuous": total.vacuous,
        "amiss": total.amiss,
        "trace": total.trace,
        "violations": [
            {
                "seed": result.case.seed,
                "invariant": result.violation.invariant,
                "at_s": result.violation.at_s,
                "text": result.violation.text,
                "replay": result.case.command,
            }
            for result in total.violations
            if result.violation is not None
        ],
    }
    print(json.dumps(document, indent=2, sort_keys=True))


def _parser() -> argparse.ArgumentParser:
    head, _, examples = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        "python -m tests.sim",
        description=head,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=20, metavar="N", help="how many")
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="S", help="the first")
    parser.add_argument("--profile", choices=sorted(PROFILES), default="swarm")
    parser.add_argument("--tier", choices=sorted(TIERS), default="memory")
    parser.add_argument("--hours", type=float, default=8.0, help="simulated, of each run")
    parser.add_argument("--off", action="append", default=[], metavar="FAULT", help="never happens")
    parser.add_argument("--no-shrink", dest="shrink", action="store_false")
    parser.add_argument("--processes", type=int, help="default: one for each core")
    parser.add_argument("--trace", action="store_true", help="print what happens: with --seeds 1")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--planted-bugs", action="store_true", help="find every planted bug")
    parser.add_argument("--form", choices=FORMS, default="text", help="of the planted bugs' table")
    parser.add_argument("--sweep", metavar="SCENARIO", help="die at every boundary of one scenario")
    parser.add_argument(
        "--die-at", type=int, metavar="N", help="with --sweep: at that boundary alone (0: at none)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
