"""How well does the right-sizer's formula foretell memory that was measured?

    python bench/sizing.py [--json FILE]

Reads tests/spotd/sizing/published.json: what others measured, with where they said so; and
measured.json beside it: what bench/gpu/sizing.py measured. Prints each figure beside the
formula's, the mean and median error by source, and for each out-of-memory what the right-sizer says
of it. "all" is of what others published, less what was held out: compared once the formula was
done, which got two more options by it.
Ends with 1 where the mean error is above 12 %, or where an out-of-memory "fits".
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from spotd.sizing import cards, catalog
from spotd.sizing.memory import FITS, GIB, estimate, verdict
from spotd.sizing.run import Run

FOLDER = Path(__file__).parents[1] / "tests" / "spotd" / "sizing"
PUBLISHED, MEASURED = FOLDER / "published.json", FOLDER / "measured.json"
MOST_MEAN = 0.12
ALL = ("all", False)  # the sum of what was not held out


@dataclass(frozen=True)
class Compared:
    """A published figure beside the formula's, in GiB a GPU; `measured_gib` None: it ran out of
    memory. `verdict` is of the card that it was measured on."""

    source: str
    model: str
    label: str
    measured_gib: float | None
    formula_gib: float
    verdict: str
    held_out: bool

    @property
    def error(self) -> float | None:
        """As a share of what was measured; negative where the formula says too little."""
        return None if self.measured_gib is None else self.formula_gib / self.measured_gib - 1


def compare(*files: Path) -> list[Compared]:
    """The formula beside each measurement, as its source read it: "allocated", what the framework
    gave out; "reserved", what its allocator held, in use or not; or "total", of the GPU, with
    CUDA's context."""
    found = []
    for file in files or (PUBLISHED, MEASURED):
        data = json.loads(file.read_text())
        found += [_compared(row, data["sources"][row["source"]]) for row in data["measurements"]]
    return found


def _compared(row: dict[str, Any], source: dict[str, str]) -> Compared:
    memory = estimate(catalog.find(row["model"]), Run(**row["run"]))
    gib = {
        "allocated": memory.allocated,
        "reserved": memory.reserved,
        "total": memory.total,
    }[row.get("reads", source["reads"])]
    said = verdict(memory, cards.find(row["card"]).memory_gib)
    held_out = "held_out" in source
    return Compared(
        source=row["source"],
        model=row["model"],
        label=row["label"],
        measured_gib=row["gib"],
        formula_gib=gib / GIB,
        verdict=said,
        held_out=held_out,
    )


def summary(rows: Sequence[Compared]) -> dict[str, dict[str, float]]:
    """Of each source, and of all but those that were held out: how many figures, the mean and
    median absolute error, the most below and above."""
    found: dict[str, dict[str, float]] = {}
    for source in [*dict.fromkeys(row.source for row in rows), "all"]:
        chosen = [row for row in rows if source == row.source or (source, row.held_out) == ALL]
        errors = [row.error for row in chosen if row.error is not None]
        if errors:
            sizes = [abs(error) for error in errors]
            found[source] = {
                "figures": len(errors),
                "mean": mean(sizes),
                "median": median(sizes),
                "least": min(errors),
                "most": max(errors),
            }
    return found


def _print(rows: Sequence[Compared], totals: dict[str, dict[str, float]]) -> None:
    for row in rows:
        if row.error is None:
            shown = f"    OOM   {row.formula_gib:6.1f}         {row.verdict}"
        else:
            shown = f"{row.measured_gib:7.2f}   {row.formula_gib:6.1f}   {row.error:+5.0%}"
        print(f"{row.source:24} {row.model:18} {row.label:54} {shown}")
    print(f"\n{'':24} figures   mean error   median   most below   most above")
    for source, one in totals.items():
        print(
            f"{source:24} {one['figures']:7.0f}   {one['mean']:10.1%}   {one['median']:6.1%}   "
            f"{min(0.0, one['least']):10.0%}   {max(0.0, one['most']):10.0%}"
        )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there as well")
    args = parser.parse_args(argv)
    rows = compare()
    totals = summary(rows)
    _print(rows, totals)
    wrong = [row for row in rows if row.measured_gib is None and row.verdict == FITS]
    for row in wrong:
        print(f"{row.source}: {row.model} {row.label} ran out of memory, and fits by the formula")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        data = {"rows": [{**asdict(row), "error": row.error} for row in rows], "totals": totals}
        args.json.write_text(json.dumps(data, indent=2) + "\n")
    return 1 if wrong or totals["all"]["mean"] > MOST_MEAN else 0


if __name__ == "__main__":
    sys.exit(main())
