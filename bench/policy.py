"""What does a placement policy cost on recorded spot traces, beside the published ones?

    python bench/policy.py --traces DIR [--part tune] [--half all|first|second] [--suites S1,M3]
                           [--policy MODULE:CLASS] [--ablations] [--ckpt-min N] [--every N]
                           [--draw N [--seed K]] [--json FILE]
    python bench/policy.py --traces DIR --own FILE.npz [--work-h 40] [--unseen down|hold] ...

DIR holds `run_bench.py`, its simulator and the traces; nothing of it is part of this repository.
The policy that the daemon has, each suite's published policies, the costs of others' own code that
DIR has, and each --policy are scored against on-demand alone, the reference and the optimum
(bench/policy_score.py says how). A policy is a class without arguments, with `reset(view)` and
`step(view)` of DIR's simulator.

`--half` scores windows that lie wholly in one half of the part's time: a policy fitted on one half
is to be scored on the other. `--ckpt-min` loses the work since the last multiple of N minutes with
each preemption; the optimum is that without loss, and others' costs are left out then. `--every`
takes one case of N, for a quick look. `--ablations` scores the daemon's policy without each of its
terms as well. The same arguments give the same output.

`--draw N` scores N cases in place of each suite's, of its series and jobs, with zones, times and
starts drawn by chance (bench/policy_drawn.py). For the optimum DIR needs numba then.

`--own` scores on a file that `spotctl advisor trace` wrote in place of DIR's suites, with jobs as
those of M1 to M4 (40 h of work or --work-h, deadlines of 1.1 to 2 times that, ten windows over the
file's length, all its zones and the three cheapest). What nobody has seen counts as not to be had;
`--unseen hold` takes what was seen last there. For the optimum DIR needs numba.

Deadlines are kept as long as on-demand is granted in time; the simulator grants it each time, and
the output says how many times it was asked for and refused.

Ends with 1 where the daemon's policy or a --policy misses a deadline. `guarded` are cases in which
the simulator's guard started on-demand in the policy's stead; the daemon's own would have done so
at that same moment.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from policy_ablations import ablations
from policy_drawn import drawn
from policy_ours import Ours
from policy_own import Own, OwnError, optima, own
from policy_score import Bounds, Dollars, Score, blocks_of, score, within

SUITES = ("S1", "S2", "M1", "M2", "M3", "M4")
REFERENCES = ("uniform-progress", "UP(S)")  # of one zone, of several
MISSED = 2  # times on-demand, as DIR's own benchmark counts it


class Run(NamedTuple):
    """A policy's dollars for each case, deadlines missed, and cases that the guard stepped into."""

    cost: Dollars
    missed: int
    guarded: int | None


class Refused(Exception):
    """Arguments that nothing can be run with; says what to change."""


def load(traces: Path) -> ModuleType:
    """DIR's run_bench; raises Refused where there is none."""
    file = traces / "run_bench.py"
    if not file.is_file():
        raise Refused(f"--traces: {file} does not exist; name the folder that holds run_bench.py")
    spec = importlib.util.spec_from_file_location("run_bench", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def policies(names: Sequence[str]) -> list[Any]:
    """The policies named MODULE:CLASS; raises Refused for one that is not there."""
    found = []
    for name in names:
        module, _, attribute = name.partition(":")
        try:
            found.append(getattr(importlib.import_module(module), attribute)())
        except (ImportError, AttributeError, ValueError) as error:
            raise Refused(f"--policy {name}: {error}; write it as MODULE:CLASS") from error
    return found


def suite(
    bench: ModuleType, name: str, args: argparse.Namespace, ours: Sequence[Any]
) -> dict[str, Any]:
    """One of DIR's; see `compared`."""
    cases = bench.S.suite(name, args.part)
    if args.draw:
        more = drawn(cases, args.draw, args.seed)
        there = Own(name, more, name, "", lambda numbers: optima(bench, [more[n] for n in numbers]))
        return compared(bench, there, args, ours)
    best = bench.oracle(name, args.part)
    if len(cases) != len(best):
        raise Refused(f"{name}: {len(best)} optima for {len(cases)} cases; compute them again")
    others = [] if args.ckpt_min else anchors(args.traces, name, args.part)
    dir_s = Own(name, cases, name, "", lambda numbers: [best[number] for number in numbers])
    return compared(bench, dir_s, args, ours, others)


def compared(
    bench: ModuleType,
    all_of_it: Own,
    args: argparse.Namespace,
    ours: Sequence[Any],
    others: Sequence[tuple[str, list[float | None]]] = (),
) -> dict[str, Any]:
    """How many cases and blocks, the optimum's ratio (or None, and why), and a Score for each
    policy."""
    name, cases = all_of_it.name, all_of_it.cases
    kept = within(cases, args.half)[:: args.every]
    if not kept:
        raise Refused(f"{name}: no window lies in the {args.half} half; take another --half")
    chosen = [cases[index] for index in kept]
    on_demand = np.array([bench.od_only(case) for case in chosen])
    runs: dict[str, Run] = {}
    for policy in [*bench.baselines(all_of_it.like), *ours]:
        if policy.name in runs:
            raise Refused(f"--policy: two are called {policy.name}; give yours another `name`")
        outcome = bench.run(policy, chosen, args.ckpt_min * 60)
        guarded = sum(1 for _, missed, told in outcome if missed or told["safety_hits"])
        cost = np.array([dollars for dollars, *_ in outcome])
        runs[policy.name] = Run(cost, sum(missed for _, missed, _ in outcome), guarded)
    for title, costs in others:
        told = np.array([np.nan if costs[index] is None else costs[index] for index in kept])
        late = np.isnan(told)
        runs[title] = Run(np.where(late, MISSED * on_demand, told), int(late.sum()), None)
    reference = next(runs[title].cost for title in REFERENCES if title in runs)
    best = all_of_it.optima(kept)
    optimum = None if isinstance(best, str) else np.array(best)
    bounds = Bounds(on_demand, reference, optimum, blocks_of(chosen))
    return {
        "cases": len(chosen),
        "blocks": int(bounds.blocks.max()) + 1,
        "optimum_ratio": None if optimum is None else float((optimum / on_demand).mean()),
        **({"no_optimum": best} if optimum is None else {}),
        "scores": [
            score(title, one.cost, bounds, one.missed, one.guarded) for title, one in runs.items()
        ],
    }


def anchors(traces: Path, name: str, part: str) -> list[tuple[str, list[float | None]]]:
    """(title, dollars of each of the suite's cases) of others' own code, None for a missed one."""
    files = sorted((traces / "anchors").glob(f"{name}_{part}_*.json"))
    read = [json.loads(file.read_text()) for file in files]
    return [(f"{one['name']} [external]", one["cost"]) for one in read]


def table(name: str, found: dict[str, Any]) -> str:
    """The suite as text, the cheapest policy first."""
    size, best = f"{found['cases']} cases, {found['blocks']} blocks", found["optimum_ratio"]
    optimum = (
        f"no optimum: {found['no_optimum']}" if best is None else f"optimum {best:.4f} of on-demand"
    )
    heads = f"{'ratio':>8}{'omni':>8}{'closed':>8}{'90 %':>16}{'missed':>8}{'guarded':>9}"
    lines = [
        f"{name}: {size}, {optimum}",
        f"  {'policy':34}{heads}",
    ]
    for row in sorted(found["scores"], key=lambda row: (row.ratio, row.policy)):
        omni = "-" if row.omni is None else f"{row.omni:.4f}"
        closed = "-" if row.closed is None else f"{row.closed:.3f}"
        interval = "-" if row.ci90 is None else f"{row.ci90[0]:.2f} .. {row.ci90[1]:.2f}"
        guarded = "-" if row.guarded is None else str(row.guarded)
        lines.append(
            f"  {row.policy:34}{row.ratio:8.4f}{omni:>8}{closed:>8}{interval:>16}"
            f"{row.missed:8}{guarded:>9}"
        )
    return "\n".join(lines)


def mean_closed(found: dict[str, dict[str, Any]], policy: str) -> float | None:
    """The mean of `closed` over the suites of several zones; None unless all four were run."""
    several: list[Score] = [
        row
        for name, one in found.items()
        for row in one["scores"]
        if name.startswith("M") and row.policy == policy
    ]
    closed = [row.closed for row in several if row.closed is not None]
    return sum(closed) / 4 if len(closed) == 4 else None


def parsed(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Policies on recorded spot traces.")
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--part", default="tune")
    parser.add_argument("--half", choices=("all", "first", "second"), default="all")
    parser.add_argument("--suites", default=",".join(SUITES))
    parser.add_argument("--policy", action="append", default=[], metavar="MODULE:CLASS")
    parser.add_argument("--ablations", action="store_true")
    parser.add_argument("--ckpt-min", type=float, default=0.0)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--draw", type=int, default=0, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--own", type=Path, action="append", default=[], metavar="FILE")
    parser.add_argument("--work-h", type=float, default=40.0)
    parser.add_argument("--unseen", choices=("down", "hold"), default="down")
    args = parser.parse_args(words)
    args.suites = args.suites.split(",")
    unknown = [name for name in args.suites if name not in SUITES]
    if unknown:
        parser.error(f"--suites: {unknown[0]} is none of {', '.join(SUITES)}")
    if not 0 <= args.ckpt_min < float("inf"):
        parser.error(f"--ckpt-min: {args.ckpt_min} is not a number of minutes; 0 loses no work")
    if not 0 < args.work_h < float("inf"):
        parser.error(f"--work-h: {args.work_h} is not a number of hours; 40 is what M1 to M4 have")
    if args.draw < 0:
        parser.error(f"--draw: {args.draw} is below 0; 128 cases of each suite take some minutes")
    if args.draw and args.own:
        parser.error("--draw: is of DIR's suites; leave --own out")
    if args.draw and args.half != "all":
        parser.error("--draw: is from all of the time; leave --half out")
    if args.every < 1:
        parser.error(f"--every: {args.every} is below 1; 1 takes each case")
    return args


def main(words: Sequence[str] | None = None) -> int:
    args = parsed(sys.argv[1:] if words is None else words)
    found: dict[str, dict[str, Any]] = {}
    try:
        lost_s = args.ckpt_min * 60
        bench, ours = load(args.traces), [Ours(lost_s), *policies(args.policy)]
        ours += ablations(lost_s) if args.ablations else []
        for name in () if args.own else args.suites:
            found[name] = suite(bench, name, args, ours)
            print(table(name, found[name]), flush=True)
        for file in args.own:
            mine = own(bench, file, args.work_h, args.unseen)
            print(mine.about, flush=True)
            found[str(file)] = compared(bench, mine, args, ours)
            print(table(mine.name, found[str(file)]), flush=True)
    except (Refused, OwnError, FileNotFoundError) as error:
        print(error, file=sys.stderr)
        return 2
    for policy in dict.fromkeys(row.policy for one in found.values() for row in one["scores"]):
        mean = mean_closed(found, policy)
        if mean is not None:
            print(f"mean closed over M1 to M4: {policy} {mean:.3f}")
    shipped = [one for one in ours if isinstance(one, Ours)]
    asked, refused = sum(one.asked for one in shipped), sum(one.refused for one in shipped)
    print(
        f"on-demand was asked for {asked} times by the daemon's policy and refused {refused} times"
    )
    if args.json:
        told = {
            name: {**one, "scores": [asdict(row) for row in one["scores"]]}
            for name, one in found.items()
        }
        args.json.write_text(json.dumps(told, indent=1, allow_nan=False) + "\n")
    named = {policy.name for policy in ours}
    late = sum(r.missed for one in found.values() for r in one["scores"] if r.policy in named)
    return 1 if late else 0


if __name__ == "__main__":
    raise SystemExit(main())
