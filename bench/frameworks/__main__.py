"""Are the results of a preempted training those of an undisturbed one? By framework:

    python -m bench.frameworks --json FILE                     goes on where that file ends
    python -m bench.frameworks --only transformers-oldest --seed 3 --kind notice
    python -m bench.frameworks --list

Each seed draws a small program: its model, optimizer, schedule, evaluations, and the framework's
options. It runs once without spotd and undisturbed, and then on machines that are taken away, with
a notice and without one: in a step, in an evaluation, at the end of an epoch, or right after a save
has begun. Losses, evaluations, learning rates, the log, the final weights and the best model that
is returned have to be equal, bit for bit. Versions are installed from the package index the first
time, into virtual environments below --environments. Ends with 1 if a run was not equal.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

from bench.frameworks.environments import (
    BY_NAME,
    FOLDER,
    FRAMEWORKS,
    Framework,
    python_of,
    version_of,
)
from bench.frameworks.machine import RunError, Runner, run_alone, run_preempted, running
from bench.frameworks.options import draw_settings
from bench.frameworks.outcome import Book, Outcome, compare, digest, table
from bench.frameworks.preemptions import KINDS, Preemption, draw_preemptions


def play(
    runner: Runner, version: str, seed: int, kinds: Sequence[str], book: Book, **changes: Any
) -> None:
    """Run one seed: alone, and preempted in each way. `changes` override its settings."""
    framework = runner.framework
    with tempfile.TemporaryDirectory(prefix=f"spotd-{framework.name}-") as name:
        folder, settings = Path(name), {**draw_settings(framework.settings, seed), **changes}
        path = folder / "settings.json"
        path.write_text(json.dumps(settings))
        whole, places = run_alone(runner, path, folder / "alone")
        for kind in kinds:
            ends = draw_preemptions(
                Random(f"{framework.settings} {seed} {kind}"),
                kind,
                places,
                every=settings["every"] or settings["save_steps"],
                directory=framework.directory,
            )
            outcome = compared(runner, path, folder / kind, whole, ends)
            outcome = Outcome(
                framework=framework.name, version=version, kind=kind, seed=seed, **outcome
            )
            book.add(outcome)
            print(describe(outcome), flush=True)


def compared(
    runner: Runner, settings: Path, folder: Path, whole: dict[str, Any], ends: list[Preemption]
) -> dict[str, Any]:
    """Return what an outcome has of one preempted run."""
    began_s = time.monotonic()
    found: dict[str, Any] = {
        "whole": digest(whole),
        "ends": tuple(f"{one.at}, {one.notice or 'killed'}" for one in ends),
    }
    try:
        parts, losses = run_preempted(runner, settings, folder, ends)
    except (RunError, AssertionError) as error:
        found["failed"] = str(error)
    else:
        found["differs"], found["first"] = compare(whole, parts)
        if repeated := sorted(step for step, values in losses.items() if len(values) > 1):
            found["differs"] += ("repeated steps",)
            found["first"] += f"\nsteps with other losses when they were repeated: {repeated}"
    return {**found, "took_s": round(time.monotonic() - began_s, 1)}


def describe(outcome: Outcome) -> str:
    """Return the line, or the lines, on the terminal."""
    head = f"{outcome.framework} seed {outcome.seed}, {outcome.kind} ({'; '.join(outcome.ends)})"
    if outcome.equal:
        return f"{head}: equal, {outcome.took_s} s"
    what = outcome.failed or f"{', '.join(outcome.differs)}\n{outcome.first}"
    return f"{head}: NOT EQUAL: {what}"


def play_all(framework: Framework, given: argparse.Namespace, book: Book) -> None:
    python = python_of(framework, given.environments)
    version = version_of(framework, python)
    with running(Runner(framework, python, fresh=given.fresh)) as runner:
        for seed in given.seed or range(1, given.seeds + 1):
            kinds = [
                kind
                for kind in given.kind
                if given.again or not book.has(framework.name, kind, seed)
            ]
            if not kinds:
                continue
            try:
                play(runner, version, seed, kinds, book)
            except RunError as error:
                for kind in kinds:
                    book.add(Outcome(framework.name, version, kind, seed, (), failed=str(error)))
                print(f"{framework.name} seed {seed}: {error}", flush=True)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.frameworks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="kept there after each run")
    parser.add_argument("--only", nargs="+", choices=list(BY_NAME), default=list(BY_NAME))
    parser.add_argument("--seeds", type=int, default=10, help="seeds 1 to this number")
    parser.add_argument("--seed", type=int, nargs="+", help="these seeds alone")
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--again", action="store_true", help="also what is on record")
    parser.add_argument("--fresh", action="store_true", help="a new interpreter for each run")
    parser.add_argument("--at-once", type=int, default=1, help="frameworks side by side")
    parser.add_argument("--environments", type=Path, default=FOLDER, metavar="FOLDER")
    parser.add_argument("--list", action="store_true", help="list the frameworks, and end")
    return parser.parse_args()


def main() -> int:
    given = read_arguments()
    if given.list:
        for one in FRAMEWORKS:
            print(f"{one.name:20} {', '.join(one.packages)}")
        return 0
    book = Book(given.json)
    with ThreadPoolExecutor(given.at_once) as pool:
        under_way = [pool.submit(play_all, BY_NAME[name], given, book) for name in given.only]
        for one in under_way:
            one.result()
    wanted = [one for one in book.outcomes if one.framework in given.only]
    print("\n".join(table(wanted)))
    return int(not all(one.equal for one in wanted))


if __name__ == "__main__":
    sys.exit(main())
