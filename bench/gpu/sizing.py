"""How well the right-sizer foretells memory and pace of training runs on the GPU that is here.

    python -m bench.gpu.sizing --json measured.json      # every run, each in a program of its own
    python -m bench.gpu.sizing --only llama-3-8b         # those of one model

Needs transformers and peft (the extra `examples`); runs in 8 bits or NF4 need bitsandbytes, and
those with fused kernels liger-kernel. What is missing, or fails, is said and left out. The formula
is the one that `spotctl rightsize` uses. The file is like tests/spotd/sizing/published.json, with
every figure: GiB allocated, held by the allocator (reserved), and in use on the GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from bench.gpu.sized import CASES, LATER, Case, measure
from spotd.sizing import cards, catalog
from spotd.sizing.cards import Card
from spotd.sizing.memory import FITS, GIB, estimate, verdict
from spotd.sizing.run import Run
from spotd.sizing.task import Task
from spotd.sizing.throughput import pace

ALL = [*CASES, *LATER]
SOURCE, SOURCE_LATER = "spotd", "spotd-later"
CASE_S = 180.0


def beside(chosen: Case, found: dict[str, Any], card: Card) -> dict[str, Any]:
    """What was measured, and what the formula says of it: a row of the file."""
    shape = catalog.find(chosen.model)
    memory = estimate(shape, chosen.run)
    usual = asdict(Run())
    return {
        "source": SOURCE_LATER if chosen in LATER else SOURCE,
        "label": chosen.label,
        "model": chosen.model,
        "gib": found["reserved"],
        "card": card.name,
        "run": {key: one for key, one in asdict(chosen.run).items() if one != usual[key]},
        **{key: found[key] for key in ("allocated", "used", "tokens_per_s")},
        "formula_gib": round(memory.reserved / GIB, 3),
        "formula_allocated_gib": round(memory.allocated / GIB, 3),
        "formula_used_gib": round(memory.total / GIB, 3),
        "verdict": verdict(memory, card.memory_gib),
        "formula_tokens_per_s": round(pace(Task(shape, chosen.run), card).tokens_per_s, 1),
    }


def measured(chosen: Sequence[int]) -> Iterator[tuple[Case, dict[str, Any]]]:
    """Each in a program of its own, whose imports are done while the one before it runs."""
    waiting: list[subprocess.Popen[str]] = []
    ahead = list(chosen)
    for number in chosen:
        while ahead and len(waiting) < 2:
            waiting.append(_start(ahead.pop(0)))
        process = waiting.pop(0)
        if ahead:
            waiting.append(_start(ahead.pop(0)))
        try:
            out, _ = process.communicate("go\n", CASE_S)
            yield ALL[number], json.loads(out.splitlines()[-1])
        except (subprocess.TimeoutExpired, ValueError, IndexError):
            process.kill()
            process.wait()
            yield ALL[number], {"failed": f"ended with {process.returncode}, said nothing"}


def _start(number: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "bench.gpu.sizing", "--case", str(number)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def one(number: int) -> int:
    """What a program of its own does: a line of JSON, once it is told to go."""
    import peft  # noqa: F401 - ahead of the word to go
    import transformers  # noqa: F401

    if not sys.stdin.readline():
        return 1  # whoever would have said so has ended
    try:
        found = measure(ALL[number], torch.device("cuda"))
    except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
        found = {"failed": f"{type(error).__name__}: {error}"[:300]}
    print(json.dumps(found))
    return 0


def line(row: dict[str, Any]) -> str:
    """For people."""
    if row["gib"] is None:
        shown = f"OOM     {row['formula_gib']:6.1f}        {row['verdict']}"
    else:
        off = row["formula_gib"] / row["gib"] - 1
        pace_off = row["formula_tokens_per_s"] / row["tokens_per_s"] - 1
        shown = (
            f"{row['gib']:6.2f}  {row['formula_gib']:6.1f} {off:+6.0%}  "
            f"{row['allocated']:6.2f} {row['formula_allocated_gib']:6.1f}  {row['verdict']:12} "
            f"{row['tokens_per_s']:9,.0f} {row['formula_tokens_per_s']:9,.0f} {pace_off:+6.0%}"
        )
    return f"{row['model']:16} {row['label'][:64]:64} {shown}"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu.sizing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", metavar="MODEL", help="runs of this model")
    parser.add_argument("--later", action="store_true", help="the second list of runs alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case is not None:
        return one(args.case)
    if not torch.cuda.is_available():
        parser.error("there is no CUDA device here, and this measures one")
    chosen = [
        number
        for number, row in enumerate(ALL)
        if args.only in (None, row.model) and not (args.later and row in CASES)
    ]
    if not chosen:
        parser.error(f"--only: no run is of {args.only!r}; try {ALL[0].model}")
    name = torch.cuda.get_device_name()
    card = next((cards.find(known) for known in cards.names() if known in name.split()), None)
    if card is None:
        parser.error(f"{name} is none of the cards that are known: {', '.join(cards.names())}")
    rows: list[dict[str, Any]] = []
    for row, found in measured(chosen):
        if "failed" in found:
            print(f"{row.model:16} {row.label[:64]:64} {found['failed']}", flush=True)
            continue
        rows.append(beside(row, found, card))
        print(line(rows[-1]), flush=True)
        if args.json:
            args.json.write_text(json.dumps(written(rows, name), indent=1) + "\n")
    offs = [abs(row["formula_gib"] / row["gib"] - 1) for row in rows if row["gib"]]
    wrong = [row for row in rows if row["gib"] is None and row["verdict"] == FITS]
    if offs:
        print(f"{len(offs)} runs, {mean(offs):.1%} off on average; {len(wrong)} that ran out fit")
    return 1 if wrong or not offs else 0


def written(rows: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    """The file's content."""
    about = f"{name}, torch {torch.__version__}; random weights, batches of one length"
    source = {"title": "python -m bench.gpu.sizing", "reads": "reserved", "about": about}
    names = dict.fromkeys(row["source"] for row in rows)
    return {"sources": dict.fromkeys(names, source), "measurements": list(rows)}


if __name__ == "__main__":
    sys.exit(main())
