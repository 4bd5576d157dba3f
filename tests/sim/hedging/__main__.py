"""What does asking side by side bring in a job's life on spot traces, and what does it cost?

  python -m tests.sim.hedging --traces DIR                          # one of 19 cases of M1 to M4
  python -m tests.sim.hedging --traces DIR --suites M4 --every 7 --json m4.json
  python -m tests.sim.hedging --suites X --draws 20                 # scarcity that is drawn
  python -m tests.sim.hedging --suites X --draws 5 --plain          # jobs without a deadline
  python -m tests.sim.hedging --traces DIR --suites M1 --case 3 --arms two --trace

DIR is the folder of `bench/policy.py`. Each case is lived by the daemon in the simulator once for
each arm, with the same seed: `one` machine asked for at a time and none beside a slow one, as
`shipped` (one, and another beside what is not up after 8 minutes), and with `two` and `four`
candidates. Take an odd N for --every: every fourth case has the same deadline. M1 has AWS alone,
which refuses within a second, and M2 and M3 Google Cloud alone (30 s); M4 has both, and X Azure as
well (120 s). Exit status 1 where a deadline was missed or a judge of the simulator was not content.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from tests.sim.hedging.arms import ARMS, Arm
from tests.sim.hedging.cases import DRAWN, Played, of_suite
from tests.sim.hedging.life import Life, lived
from tests.sim.hedging.score import Sum, summed, table
from tests.sim.quiet import quiet

SUITES = ("M1", "M2", "M3", "M4", DRAWN)


def main(words: Sequence[str] | None = None) -> int:
    parser = _parser()
    args = _checked(parser, sys.argv[1:] if words is None else words)
    quiet()
    lives: dict[str, list[Life]] = {}
    sums: list[Sum] = []
    for suite in args.suites:
        cases = of_suite(suite, args.traces, args.part, args.every, args.draws)
        if args.case is not None:
            if args.case >= len(cases):
                parser.error(f"--case: {suite} has {len(cases)} cases, counted from 0")
            cases = cases[args.case : args.case + 1]
        by_arm = {arm.name: [_lived(one, arm, args) for one in cases] for arm in args.arms}
        single = by_arm[args.arms[0].name]
        blocks = [one.block for one in cases]
        sums += [summed(suite, blocks, found, single) for found in by_arm.values()]
        lives[suite] = [life for found in by_arm.values() for life in found]
    print(table(sums))
    if args.json:
        told = {
            "sums": [one.as_json() for one in sums],
            "lives": {suite: [life.as_json() for life in found] for suite, found in lives.items()},
        }
        args.json.write_text(json.dumps(told, indent=1, allow_nan=False) + "\n")
    wrong = [life for found in lives.values() for life in found if life.violation or life.late_s]
    for life in wrong:
        late = f"{life.late_s:.0f} s late; " if life.late_s else ""
        print(f"{life.case}, {life.arm}: {late}{life.violation}", file=sys.stderr)
    return 1 if wrong else 0


def _lived(one: Played, arm: Arm, args: argparse.Namespace) -> Life:
    began_s = monotonic()
    hear = print if args.trace else None
    life = lived(one.case, arm, f"{one.case.name}/{args.seed}", deadline=not args.plain, hear=hear)
    print(
        f"{life.case}, {life.arm}: ${life.usd:.2f}, {life.done_h:.1f} h, {life.machines} machines,"
        f" {life.losers} losers ({monotonic() - began_s:.0f} s)",
        file=sys.stderr,
        flush=True,
    )
    return life


def _parser() -> argparse.ArgumentParser:
    head, _, examples = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        "python -m tests.sim.hedging",
        description=head,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--traces", type=Path, metavar="DIR")
    parser.add_argument("--part", default="tune")
    parser.add_argument("--suites", default=",".join(SUITES[:4]))
    parser.add_argument("--arms", default=",".join(arm.name for arm in ARMS))
    parser.add_argument("--every", type=int, default=19, metavar="N", help="one case of N")
    parser.add_argument("--draws", type=int, default=20, metavar="N", help="cases of X")
    parser.add_argument("--case", type=int, metavar="N", help="that one alone of those taken")
    parser.add_argument("--plain", action="store_true", help="jobs that say no work, no deadline")
    parser.add_argument("--seed", default="0", help="of how long machines take to come up")
    parser.add_argument("--trace", action="store_true", help="all that happens: with --case")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


def _checked(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    args = parser.parse_args(words)
    args.suites, known = args.suites.split(","), {arm.name: arm for arm in ARMS}
    for option, names, all_names in (
        ("--suites", args.suites, SUITES),
        ("--arms", args.arms.split(","), known),
    ):
        unknown = [name for name in names if name not in all_names]
        if unknown:
            parser.error(f"{option}: {unknown[0]} is none of {', '.join(all_names)}")
    args.arms = [known[name] for name in args.arms.split(",")]
    if any(suite != DRAWN for suite in args.suites):
        if args.traces is None:
            parser.error("--traces: name the folder of run_bench.py, or take --suites X")
        if not (args.traces / "spotbench" / "suites.py").is_file():
            parser.error(f"--traces: {args.traces} has no spotbench; name that of run_bench.py")
    if args.every < 1 or args.draws < 1:
        parser.error("--every and --draws are numbers from 1")
    if args.case is not None and args.case < 0:
        parser.error("--case is a number from 0")
    if args.trace and args.case is None:
        parser.error("--trace shows one case: it goes with --case N")
    return args


if __name__ == "__main__":
    sys.exit(main())
