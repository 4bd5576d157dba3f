"""What do known hours bring where there is a day? Made-up zones: a simulation of a simulation.

    python bench/policy_days.py --traces DIR [--cases 24] [--json FILE]

Zones come and go by the policy's own law of ages, but that for eight hours of each day ends are D
times as frequent and returns D times as rare, and the other way round, by the root of D, in the
rest. D is 1 (no day at all), 1.7, 3 and 6; there is one zone, or three whose bad hours follow each
other. In each case a daemon that has watched them for 24 days runs 40 h of work within 60 h, with
the term for the hour of the day and without (bench/policy_clock.py), in DIR's simulator. What is
printed is the mean ratio to on-demand alone without it, what the term brings case by case with its
90 % interval, and in how many zones it was used. Recorded traces have far weaker days
(bench/hours.py).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from policy import Refused, load
from policy_clock import Watched
from policy_score import Bounds, brought

from spotd.decide.policy.record import expected

DAYS = (1.0, 1.7, 3.0, 6.0)
SHIFTS_H = ((0,), (0, 8, 16))
GAP_S, WATCHED_D, LENGTH_D = 600.0, 24, 28
BAD = range(12, 20)
WORK_H, DEADLINE_H, RESTART_H, ON_DEMAND, EGRESS = 40.0, 60.0, 0.2, 2.8, 0.5
NAMES = ("us-east-1a_v100_1", "eu-west-1a_v100_1", "ap-east-1a_v100_1")


def zone(chance: np.random.Generator, shift_h: float, day: float) -> list[int]:
    """Whether it is there, by tick."""
    up, age_h, told = True, 1.0, []
    each_h = GAP_S / 3600
    for tick in range(int(LENGTH_D * 24 / each_h)):
        bad = int(tick * each_h + shift_h) % 24 in BAD
        times = day if bad else day**-0.5
        goes = expected(age_h, each_h) * (times if up else 1 / times)
        if chance.random() < 1 - np.exp(-goes):
            up, age_h = not up, 0.0
        else:
            age_h += each_h
        told.append(int(up))
    return told


def cases(day: float, shifts_h: Sequence[float], count: int) -> list[dict[str, Any]]:
    """They begin at all hours."""
    found, zones = [], range(len(shifts_h))
    for number in range(count):
        chance = np.random.default_rng(number)
        avail = [zone(chance, shift_h, day) for shift_h in shifts_h]
        found.append(
            {
                "suite": "made up",
                "start": int((WATCHED_D - 1 + number * 7 % 24 / 24) * 86_400 / GAP_S),
                "avail": avail,
                "spot": [[1.0 + 0.02 * n] * len(avail[n]) for n in zones],
                "od_price": [ON_DEMAND for _ in zones],
                "gap": GAP_S,
                "deadline_s": DEADLINE_H * 3600,
                "work_s": WORK_H * 3600,
                "d_s": RESTART_H * 3600,
                "zones": list(NAMES[: len(shifts_h)]),
                "egress": [[EGRESS * (a != b) for b in zones] for a in zones],
                "net": "latch",
            }
        )
    return found


class Counted(Watched):
    """`used` are the zones whose hours were used, of all cases."""

    used = 0

    def reset(self, view: Any) -> None:
        super().reset(view)
        self.used += sum(hours.used for hours in self.hours)


def compared(bench: ModuleType, day: float, made: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """With hours and without."""
    on_demand = np.array([bench.od_only(one) for one in made])
    cost, missed, used = {}, 0, 0
    for hours in (False, True):
        policy = Counted(0.0, hours=hours)
        policy.play(made, 0.0)
        outcome = bench.run(policy, made, 0.0)
        cost[hours] = np.array([dollars for dollars, *_ in outcome])
        missed += sum(late for _, late, _ in outcome)
        used += policy.used
    bounds = Bounds(on_demand, on_demand, None, np.arange(len(made)))
    zones = len(made[0]["zones"])
    return {
        "day": day,
        "zones": zones,
        "without": float((cost[False] / on_demand).mean()),
        **asdict(brought(cost[True], cost[False], bounds)),
        "used": used,
        "of": len(made) * zones,
        "missed": missed,
    }


def line(row: dict[str, Any]) -> str:
    low, high = row["ci90"]
    return (
        f"day {row['day']:3g}, {row['zones']} zones: {row['without']:.4f} without, "
        f"{row['ratio']:+.4f} [{low:+.4f}, {high:+.4f}] with, used in {row['used']} of "
        f"{row['of']} zones, {row['missed']} missed"
    )


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Known hours on made-up zones with a day.")
    parser.add_argument("--traces", type=Path, required=True, help="the folder of bench/policy.py")
    parser.add_argument("--cases", type=int, default=24)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(words)
    if args.cases < 2:
        parser.error(f"--cases: {args.cases} has no interval; 2 or more")
    try:
        bench = load(args.traces)
    except Refused as error:
        print(error, file=sys.stderr)
        return 2
    rows = []
    for day in DAYS:
        for shifts_h in SHIFTS_H:
            rows.append(compared(bench, day, cases(day, shifts_h, args.cases)))
            print(line(rows[-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
