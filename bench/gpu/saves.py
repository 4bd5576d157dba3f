"""What saving takes from a training loop on a GPU, and that it goes on there bit for bit.

    python -m bench.gpu.saves --json gpu.json               # 1.2e9 parameters, 14.5 GB a save
    python -m bench.gpu.saves --device cpu --params small   # all of it, in seconds, without a GPU

IT HAS NOT BEEN RUN TO ITS END ON A GPU: what CI runs is the second line. It takes twice a save of
the host's memory, and five times that in the folder, which is told before anything is done; after
each round its figures so far are printed and in the file. One process, float32, TF32 matmuls,
deterministic kernels. `ceilings` are rates from the device into host memory, of the same bytes in
chunks of the same size: memory that torch pinned, the saver's memory registered with CUDA (what the
engine uses), and the same without. Then three kinds of steps in turn, medians over the rounds:
without a save, with one beside training, and with one for which the loop stands. `stall` is what
the loop stood for (the call, and the wait before the optimizer's step), `slower` how much longer
the rest of the step took than one without a save, `overlap` the part of the copy that the loop
did not stand for. At last another saver restores the newest save, and the steps behind it are done
again: `bit_equal` says whether every bit is what it was.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as torch asks for with deterministic

import torch

from bench.gpu.ceilings import ceilings
from bench.gpu.training import BESIDE, NONE, STANDING, Training, about_machine, restored_equal

SHAPES = {"1b": (24, 16, 2048, 1024), "small": (2, 2, 64, 32)}  # layers, heads, width, context
SAVES_AT_ONCE = 5  # of keep 1: docs/stores.md, and one that is being written
Samples = dict[str, dict[str, list[float]]]


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What the JSON holds. Raises OSError, RuntimeError."""
    device = torch.device("cpu")
    if args.device == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
        torch.set_float32_matmul_precision("high")
        torch.use_deterministic_algorithms(mode=True)  # loads much: on a CPU these kernels are
    told: list[str] = []
    training = Training(SHAPES[args.params], args.batch, device, folder, told.append)
    check_room(folder, training.size)
    found: dict[str, Any] = {}
    with training:
        rates = ceilings(training.device, training.size, args.rounds)
        print(f"ceilings in GB/s: {rates}", file=sys.stderr, flush=True)
        training.warm_up()
        samples: Samples = {NONE: {}, BESIDE: {}, STANDING: {}}
        for number in range(args.rounds):
            for kind in (NONE, BESIDE, STANDING):
                for what, value in training.one_round(kind).items():
                    samples[kind].setdefault(what, []).append(round(value, 6))
            found = {**about_machine(training), "warnings": told}
            found |= {**report(samples, rates, training.size), "resume": None}
            write(args.json, found)
            last = {
                kind: {what: one[-1] for what, one in of.items()} for kind, of in samples.items()
            }
            print(f"round {number + 1} of {args.rounds}: {last}", file=sys.stderr, flush=True)
        steps, hashed = training.go_on(args.replay)
        end = training.position
    found["resume"] = restored_equal(training, end, steps, hashed)
    write(args.json, found)
    return found


def check_room(folder: Path, size_bytes: int) -> None:
    """Raises RuntimeError where the folder has no room for the saves that lie there at once."""
    needed, free = SAVES_AT_ONCE * size_bytes, shutil.disk_usage(folder).free
    if free < needed:
        raise RuntimeError(
            f"{folder} has {free / 1e9:.1f} GB left, and the saves take up to {needed / 1e9:.1f}: "
            "name another --folder"
        )


def write(file: Path | None, found: Mapping[str, Any]) -> None:
    """Where --json says, if it does."""
    if file is not None:
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def report(samples: Samples, rates: Mapping[str, list[float]], size_bytes: int) -> dict[str, Any]:
    """Medians and what they mean. `share` is of a step without a save; `slower` is at least 0."""
    medians = {
        kind: {what: statistics.median(values) for what, values in one.items()}
        for kind, one in samples.items()
    }
    usual_s = medians[NONE]["step_s"]
    saves = {}
    for kind in (BESIDE, STANDING):
        one = medians[kind]
        slower_s = max(0.0, one["step_s"] - one["stall_s"] - usual_s)
        saves[kind] = {
            "stall_s": one["stall_s"],
            "slower_s": round(slower_s, 6),
            "share_of_step": round((one["stall_s"] + slower_s) / usual_s, 4),
            "copy_s": one["copy_s"],
            "overlap": round(max(0.0, 1.0 - one["stall_s"] / one["copy_s"]), 4),
            "gb_per_s": round(size_bytes / 1e9 / one["copy_s"], 3),
        }
    ceiling = {name: round(statistics.median(values), 3) for name, values in rates.items()}
    best = max(ceiling.values())
    ratios = {kind: round(one["gb_per_s"] / best, 3) for kind, one in saves.items()}
    return {
        "bytes": size_bytes,
        "step_s": usual_s,
        "ceilings_gb_per_s": ceiling,
        "saves": saves,
        "rate_vs_ceiling": ratios,
        "samples": samples,
    }


def table(found: Mapping[str, Any]) -> str:
    """For people."""
    about = f"{found['device_name']}, torch {found['torch']}, {found['parameters'] / 1e6:.1f} M"
    lines = [f"{about} parameters, {found['bytes'] / 1e9:.3f} GB, step {found['step_s']:.4f} s", ""]
    rates = [(name, f"{rate:.2f} GB/s") for name, rate in found["ceilings_gb_per_s"].items()]
    for kind, one in found["saves"].items():
        rates += [(f"{kind}: {what}", f"{value:.4f}") for what, value in one.items()]
    rates += [
        (f"{kind}: rate over the ceiling", f"{ratio:.2f}")
        for kind, ratio in found["rate_vs_ceiling"].items()
    ]
    rates.append(("resumed bit for bit", str(found["resume"]["bit_equal"])))
    rates.append(("restored in", f"{found['resume']['restore_s']:.3f} s"))
    lines += [f"{name:44} {value}" for name, value in rates]
    return "\n".join([*lines, *(f"warning: {text}" for text in found["warnings"])])


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu.saves",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--params", choices=tuple(SHAPES), default="1b", help="size of the model")
    parser.add_argument("--batch", type=int, default=4, help="sequences a step (default: 4)")
    parser.add_argument("--rounds", type=int, default=7, help="counted (default: 7)")
    parser.add_argument("--replay", type=int, default=5, help="steps done again (default: 5)")
    parser.add_argument("--folder", help="for the checkpoints (default: $TMPDIR)")
    parser.add_argument("--json", type=Path, help="write everything to this file")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: there is no CUDA device here; --device cpu runs without")
    if min(args.batch, args.rounds, args.replay) < 1:
        parser.error("--batch, --rounds and --replay are 1 or more")
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="bench-gpu-") as folder:
        try:
            found = measure(args, Path(folder))
        except (OSError, RuntimeError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    print(table(found))
    return 0 if found["resume"]["bit_equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
