"""The command line of `python -m trainer.train`."""

from __future__ import annotations

import argparse
from pathlib import Path


def parse_arguments(description: str) -> argparse.Namespace:
    """Parse sys.argv. Exits with a message for invalid arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.train",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--steps", type=int, default=1000, help="optimizer steps in all")
    add("--batch", type=int, default=16, help="sequences per rank (virtual rank, share) and step")
    add(
        "--virtual-ranks",
        type=int,
        default=0,
        help="split each step into this many batches, summed in a fixed order: the same bits on "
        "any number of ranks up to it (0, without --shares: one a rank, and their number is fixed)",
    )
    add(
        "--shares",
        type=int,
        default=0,
        help="as --virtual-ranks, but summed in the quickest order: the last bits depend on "
        "the number of ranks",
    )
    add(
        "--shard",
        action="store_true",
        help="divide weights and optimizer among the ranks (FSDP2); each saves its own part",
    )
    add("--block", type=int, default=128, help="context in bytes")
    add("--layers", type=int, default=4)
    add("--heads", type=int, default=4)
    add("--width", type=int, default=128)
    add("--dropout", type=float, default=0.1)
    add("--lr", type=float, default=1e-3, help="peak learning rate")
    add("--warmup", type=int, default=20, help="steps of linear warm-up")
    add("--seed", type=int, default=1)
    add("--data", type=Path, help="file or folder (default: Python's own standard library)")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add(
        "--threads",
        type=int,
        default=0,
        help="CPU threads (0: the checkpoint's, or torch's choice)",
    )
    add("--workers", type=int, default=0, help="processes of each rank that make batches ahead")
    add("--step-time-ms", type=float, default=0.0, help="wait until a step took this long")
    args = parser.parse_args()
    if args.shares and args.virtual_ranks:
        parser.error("--shares and --virtual-ranks are two ways to divide a step: give one of them")
    return args
