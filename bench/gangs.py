"""What it costs a gang to lose a machine: steps made again, and seconds in which nobody trains.

    python -m bench.gangs [--samples 3] [--stories "four, a death"] [--json FILE]      (as root)

Each of the stories of tests/e2e/gangs.py is played so often, by turns: a job of several machines
under torchrun, one of which is lost, at a random (seeded) step. Some machines are processes of the
local cloud, others namespaces with a network, a disk and an OpenSSH of their own. Medians, least
and most of each change of attempts; a JSON file is written after each sample. Ends with 1 when a
job did not end well, or in other bits than the same job on one machine, undisturbed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from spotd.demo.box import BoxError
from tests.e2e.gangs import STORIES, Change, changes, difference_from_one_machine, played
from tests.e2e.installed import install

PATIENCE = 5.0  # times what tests wait: the machine may be busy, and that is part of the figures
STRIKES = (60, 120)  # the step at which it is lost lies between these


def sample(name: str, python: Path, folder: Path, strike: int) -> list[Change]:
    """One story, played once. Raises ValueError when its job ended in other bits, and as `played`
    when it did not end well."""
    story = STORIES[name]
    with played(folder / "box", python, story, strike, PATIENCE) as (box, job_id):
        found = changes(box, job_id)
        difference = difference_from_one_machine(box, job_id, story, folder / "alone")
    if difference is not None:
        raise ValueError(f"other bits than on one machine: {difference}")
    return found


def summary(samples: Sequence[Sequence[Change]]) -> list[dict[str, Any]]:
    """Of each change of attempts, those of samples that went the same way put together."""
    found: dict[tuple[int, tuple[int, int]], list[Change]] = {}
    for one in samples:
        for place, change in enumerate(one):
            found.setdefault((place, change.machines), []).append(change)
    return [
        {
            "machines": f"{before} -> {after}",
            "samples": len(same),
            "steps_lost": _spread([change.steps_lost for change in same]),
            "without_s": _spread([change.without_s for change in same]),
        }
        for (_, (before, after)), same in sorted(found.items())
    ]


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 2),
        "least": round(min(values), 2),
        "most": round(max(values), 2),
    }


def show(figures: Mapping[str, list[dict[str, Any]]]) -> None:
    """As rows of a table in docs/measurements.md."""
    for name, rows in figures.items():
        for row in rows:
            lost, without = (
                "{median:g} ({least:g} to {most:g})".format(**row[kind])
                for kind in ("steps_lost", "without_s")
            )
            print(f"| {name} | {row['machines']} | {row['samples']} | {lost} | {without} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--stories", nargs="*", default=list(STORIES), choices=list(STORIES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    dice, wrong = random.Random(options.seed), []
    found: dict[str, list[list[Change]]] = {name: [] for name in options.stories}
    loads = []
    with tempfile.TemporaryDirectory(prefix="sp-", dir="/tmp") as wheel:
        python = install(Path(wheel))
        for name in options.stories * options.samples:
            strike = dice.randint(*STRIKES)
            try:
                with tempfile.TemporaryDirectory(prefix="sp-", dir="/tmp") as folder:
                    found[name].append(sample(name, python, Path(folder), strike))
            except (AssertionError, BoxError, ValueError) as error:
                wrong.append(f"{name}, struck at step {strike}: {error}")
            loads.append(round(os.getloadavg()[0], 1))
            print(name, strike, *map(str, found[name][-1:]), file=sys.stderr, flush=True)
            _keep(options.json, found, loads, wrong)
    show({name: summary(samples) for name, samples in found.items()})
    print(f"load average {min(loads)} to {max(loads)}")
    print("\n".join(wrong) or "every job ended in the bits of one machine")
    return int(bool(wrong))


def _keep(
    path: Path | None,
    found: Mapping[str, Sequence[Sequence[Change]]],
    loads: Sequence[float],
    wrong: Sequence[str],
) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        samples = {name: [list(map(asdict, one)) for one in each] for name, each in found.items()}
        figures = {name: summary(each) for name, each in found.items()}
        kept = {"figures": figures, "samples": samples, "loads": loads, "wrong": wrong}
        path.write_text(json.dumps(kept, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
