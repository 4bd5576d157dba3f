"""Does the hour of the day foretell when spot goes and when it comes back, on days not seen?

    python -m bench.hours --traces DIR [--json FILE]

On the recorded traces of bench/policy.py (part `tune`): for each series the factors of
bench/daily.py are learned from the first half of its days and scored on the second, and the other
way round. The score is the log score of a Poisson process, in nats for each event, by
which the law of ages with the hour's factor does better than the law at the series' own mean
without: of ends of being up, and of returns from being down. Intervals of 90 % are a bootstrap over
days; of several series a day is drawn for all at once. `weekend` is what a factor for Saturday and
Sunday and one for the other days brings on top, where two weekends were seen in the half that is
learned from, and the other days: AWS 2023's first half alone.

`in turn` is what a daemon would see: each day foretold from all before it, in nats, and whether the
days speak for the hours by the rule of bench/daily.py. `by chance` is how often they would were
there nothing to know: each day's hours are turned by a number drawn for it, so that what goes
together on a day stays.

The clock of AWS 2022 is known by its date alone; for what recurs with each day that is enough.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bench.daily import (
    HOURS,
    WORTH,
    Day,
    counted,
    factors,
    foretold,
    gain,
    times,
    together,
)
from spotd.planner.spot_policy import Sighting

TRACES = (  # which suites it is of, its file, machines that a gang needs
    ("S1", "aws_2022_v100_k80", 1),
    ("S2, M1", "aws_2023_v100", 1),
    ("M2", "gcp_2025_h100x16", 1),
    ("M3", "gcp_2025_h100x16", 16),
)
DRAWS, TURNS, SEED = 1000, 20, 0
WEEKENDS = 2  # of each half of the week, to learn from

Days = Mapping[int, Day]


@dataclass(frozen=True)
class Score:
    """Nats an event, with the interval; None with one day or no event."""

    events: int
    nats: float
    low: float
    high: float


@dataclass(frozen=True)
class Found:
    """Of one series, or of all of a trace (`speaks` and `by_chance`: in how many series)."""

    name: str
    of: str
    hour: Score | None
    weekend: Score | None
    in_turn_nats: float
    speaks: float
    by_chance: float


def read(file: Path, gang: int) -> dict[str, tuple[Days, Days]]:
    """By series: its ends and its returns, by day."""
    with np.load(file, allow_pickle=False) as found:
        gap_s = float(found["gap"])
        begins_s = float(np.datetime64(str(found["start"]), "s").astype(float))
        told = dict(zip(map(str, found["zones"]), found["avail"] >= gang, strict=True))
    series = {}
    for zone, row in told.items():
        ups = (Sighting(begins_s + n * gap_s, bool(up)) for n, up in enumerate(row))
        series[zone] = counted(ups)
    return series


def out_of_time(days: Days) -> tuple[dict[int, tuple[float, float]], dict[int, float]]:
    """By day: nats and events, and what weekends bring on top where they can be told."""
    order = sorted(days)
    middle = len(order) // 2
    hour: dict[int, tuple[float, float]] = {}
    weekend: dict[int, float] = {}
    for learned, scored in (
        (order[:middle], order[middle:]),
        (order[middle:], order[:middle]),
    ):
        all_of_it = together(days[day] for day in learned)
        own, by_hour = times(all_of_it), factors(all_of_it)
        kinds = _kinds(days, learned, own, by_hour)
        for day in scored:
            nats = gain(days[day], own, by_hour)
            hour[day] = nats, sum(days[day].events)
            if kinds is not None:
                both = [factor * kinds[_is_weekend(day)] for factor in by_hour]
                weekend[day] = gain(days[day], own, both) - nats
    return hour, weekend


def _kinds(
    days: Days, learned: Sequence[int], own: float, by_hour: Sequence[float]
) -> tuple[float, float] | None:
    """The factors of working days and of weekends."""
    weekends = [day for day in learned if _is_weekend(day)]
    if len(weekends) < 2 * WEEKENDS or len(learned) - len(weekends) < 5 * WEEKENDS - 3:
        return None
    found = []
    for kind in (False, True):
        of = together(days[day] for day in learned if _is_weekend(day) is kind)
        told = own * sum(law * f for law, f in zip(of.by_law, by_hour, strict=True))
        found.append((WORTH + sum(of.events)) / (WORTH + told))
    return found[0], found[1]


def _is_weekend(day: int) -> bool:
    return (day + 3) % 7 >= 5  # 1970 began on a Thursday


def scored(by_day: Mapping[int, tuple[float, float]]) -> Score | None:
    days = sorted(by_day)
    nats = np.array([by_day[day][0] for day in days])
    events = np.array([by_day[day][1] for day in days])
    if len(days) < 2 or not events.sum():
        return None
    drawn = np.random.default_rng(SEED).integers(0, len(days), (DRAWS, len(days)))
    each = nats[drawn].sum(1) / np.maximum(events[drawn].sum(1), 1)
    low, high = np.percentile(each, (5, 95))
    return Score(int(events.sum()), float(nats.sum() / events.sum()), float(low), float(high))


def by_chance(days: Days) -> float:
    """How often the days speak for the hours where each day's are turned by chance."""
    chance = np.random.default_rng(SEED)
    speaks = 0
    for _ in range(TURNS):
        turned = {}
        for day, told in days.items():
            by = int(chance.integers(HOURS))
            turned[day] = Day(
                [*told.events[by:], *told.events[:by]], [*told.by_law[by:], *told.by_law[:by]]
            )
        speaks += foretold(turned).speaks
    return speaks / TURNS


def examined(series: Mapping[str, tuple[Days, Days]]) -> list[Found]:
    """Of each series, ends and returns; and the two of all together at the end."""
    found = []
    pooled = []
    for number, of in enumerate(("ends", "returns")):
        hours: dict[int, tuple[float, float]] = {}
        weekends: dict[int, tuple[float, float]] = {}
        rows = []
        for name, both in series.items():
            days = both[number]
            hour, weekend = out_of_time(days)
            with_events = {day: (nats, hour[day][1]) for day, nats in weekend.items()}
            in_turn = foretold(days)
            row = Found(
                name,
                of,
                scored(hour),
                scored(with_events),
                in_turn.nats,
                float(in_turn.speaks),
                by_chance(days),
            )
            rows.append(row)
            _add(hours, hour)
            _add(weekends, with_events)
        found += rows
        pooled.append(
            Found(
                f"all {len(rows)}",
                of,
                scored(hours),
                scored(weekends),
                sum(row.in_turn_nats for row in rows),
                sum(row.speaks for row in rows),
                sum(row.by_chance for row in rows),
            )
        )
    return found + pooled


def _add(sums: dict[int, tuple[float, float]], more: Mapping[int, tuple[float, float]]) -> None:
    for day, (nats, events) in more.items():
        before = sums.get(day, (0.0, 0.0))
        sums[day] = before[0] + nats, before[1] + events


def line(row: Found) -> str:
    told = "".join(f"{_words(one):>32}" for one in (row.hour, row.weekend))
    events = row.hour.events if row.hour else 0
    chance = f"{row.speaks:8.0f}{row.by_chance:10.2f}"
    return f"  {row.name:24}{row.of:9}{events:7}{told}{row.in_turn_nats:9.1f}{chance}"


def _words(one: Score | None) -> str:
    return "-" if one is None else f"{one.nats:+.4f} [{one.low:+.4f}, {one.high:+.4f}]"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What the hour of the day foretells.")
    parser.add_argument("--traces", type=Path, required=True, help="the folder of bench/policy.py")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(words)
    folder = args.traces / "data" / "tune"
    missing = [name for _, name, _ in TRACES if not (folder / f"{name}.npz").is_file()]
    if missing:
        print(
            f"--traces: {folder}/{missing[0]}.npz does not exist; name the folder that holds "
            "run_bench.py",
            file=sys.stderr,
        )
        return 2
    told = {}
    for suites, name, gang in TRACES:
        rows = examined(read(folder / f"{name}.npz", gang))
        told[suites] = [asdict(row) for row in rows]
        heads = f"{'hour: nats an event, 90 %':>32}{'weekend, on top':>32}"
        print(f"{suites} ({name}, {gang} at once)")
        last = f"{'in turn':>9}{'speaks':>8}{'by chance':>10}"
        print(f"  {'series':24}{'of':9}{'events':>7}{heads}{last}")
        print("\n".join(map(line, rows)), flush=True)
    if args.json:
        args.json.write_text(json.dumps(told, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
