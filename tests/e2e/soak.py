"""Every way to hurt a job, many times: `python -m tests.e2e.soak --out FILE [--runs 20]`.

Results are kept in FILE after every run. Run again, it goes on where it stopped, and tries again
what went wrong. A run that went wrong leaves its box beside FILE.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from tests.e2e.installed import install
from tests.e2e.rig import Reference, make_reference
from tests.e2e.runs import Outcome, perform
from tests.e2e.scenarios import SCENARIOS

Row = dict[str, Any]


class Results:
    """The rows of FILE, one a run that has been made, by scenario and seed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: list[Row] = json.loads(path.read_text())["runs"] if path.exists() else []

    def has(self, scenario: str, seed: int) -> bool:
        """Whether this run went well already."""
        key = (scenario, seed)
        return any((r["scenario"], r["seed"]) == key and not r["wrong"] for r in self.rows)

    def add(self, outcome: Outcome) -> None:
        """Keep a run; one that went well loses its story."""
        row = asdict(outcome) | ({} if outcome.wrong else {"story": ()})
        self.rows.append(row)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps({"runs": self.rows}, indent=1) + "\n")
        new.replace(self._path)

    def table(self) -> str:
        """One line a scenario."""
        lines = [
            f"{'scenario':10} {'runs':>5} {'well':>5} {'wrong':>6} {'median s':>9} {'max s':>6}"
        ]
        for scenario in SCENARIOS:
            rows = [row for row in self.rows if row["scenario"] == scenario]
            if rows:
                walls = [row["wall_s"] for row in rows]
                wrong = sum(bool(row["wrong"]) for row in rows)
                counts = f"{len(rows):5} {len(rows) - wrong:5} {wrong:6}"
                times = f"{statistics.median(walls):9.1f} {max(walls):6.1f}"
                lines.append(f"{scenario:10} {counts} {times}")
        return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when every run that was asked for went well the first time."""
    parser = argparse.ArgumentParser(prog="soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="file that keeps the results")
    parser.add_argument("--runs", type=int, default=20, help="of each scenario")
    parser.add_argument("--scenarios", default=",".join(SCENARIOS))
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _end)  # so that no box outlives us
    results = Results(options.out)
    wanted = [
        (scenario, seed)
        for seed in range(1, options.runs + 1)
        for scenario in options.scenarios.split(",")
    ]
    missing = [run for run in wanted if not results.has(*run)]
    print(f"{len(wanted) - len(missing)} of {len(wanted)} runs are done", flush=True)
    if missing:
        # Short, because sockets lie in it.
        with tempfile.TemporaryDirectory(prefix="spotd-soak-") as folder:
            try:
                _soak(missing, results, Path(folder), options.out)
            except KeyboardInterrupt:
                print("interrupted: the same command goes on from here")
                return 130
    print(results.table())
    return 1 if any(row["wrong"] for row in results.rows) else 0


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _soak(missing: Sequence[tuple[str, int]], results: Results, folder: Path, out: Path) -> None:
    python = install(_made(folder / "installed"))
    reference = make_reference(python, folder / "reference")
    for number, (scenario, seed) in enumerate(missing, start=1):
        outcome = _one(scenario, seed, python, reference, folder / "box", out)
        results.add(outcome)
        word = "well" if not outcome.wrong else "WRONG"
        print(f"{number}/{len(missing)} {scenario} seed {seed}: {word}, {outcome.wall_s} s")
        if outcome.wrong:
            print(outcome.report())
        sys.stdout.flush()


def _one(
    scenario: str, seed: int, python: Path, reference: Reference, box: Path, out: Path
) -> Outcome:
    outcome = perform(scenario, seed, python, reference, _made(box))
    if outcome.wrong:
        kept = out.with_name(f"{out.stem}-{scenario}-{seed}")
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(box, kept, ignore=_sockets)
    shutil.rmtree(box)
    return outcome


def _sockets(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if (Path(folder) / name).is_socket()]


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


if __name__ == "__main__":
    sys.exit(main())
