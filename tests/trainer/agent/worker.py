"""A training program that speaks over the link, for tests of the agent. Not a test itself.

    worker.py [--deaf] [--save-s S] [--step-s S] [--steps N] [--hang-at N] [--busy-s S]

`--deaf` ignores the flag and SIGTERM. `--hang-at` makes no step after that one; `--busy-s` says so
before. Every line that it prints begins with what it is about.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
import sys
import threading
import time

from spotd import wire
from trainer.link import Link


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--deaf", action="store_true")
    parser.add_argument("--save-s", type=float, default=0.0)
    parser.add_argument("--step-s", type=float, default=0.02)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--hang-at", type=int, default=0)
    parser.add_argument("--busy-s", type=float, default=0.0)
    args = parser.parse_args()
    faulthandler.register(signal.SIGUSR2)
    termed: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: termed.append(number))
    link = Link.connect(os.environ)
    link.send(wire.READY, {})
    link.wait_flag(5.0)
    print("claim", *link.claim_of(), flush=True)
    link.send(wire.CLAIMED, {"step": 0, "manifest": ""})
    saves = 0
    for step in range(1, args.steps + 1):
        time.sleep(args.step_s)
        progress = {"from_step": step, "to_step": step, "losses": [0.5], "busy_s": args.step_s}
        link.send(wire.PROGRESS, progress)
        if step == args.hang_at:
            hang(link, args.busy_s)
        if link.flag.save > saves:
            saves = link.flag.save
            print("save", saves, flush=True)
            time.sleep(args.save_s)
            link.send(wire.CHECKPOINT, checkpoint(step, args.save_s))
        if termed and not args.deaf:
            print("sigterm", flush=True)
        if (link.flag.stop or termed) and not args.deaf:
            print("stop", link.flag.reason, flush=True)
            time.sleep(args.save_s)
            link.send(wire.CHECKPOINT, checkpoint(step, args.save_s))
            link.send(wire.RELEASED, {"step": step, "manifest": "m"})
            link.close(exit_code=wire.EXIT_RELEASED)
            return wire.EXIT_RELEASED
    link.send(wire.CHECKPOINT, {**checkpoint(args.steps, 0.0), "final": True})
    link.close(exit_code=0)
    return 0


def hang(link: Link, busy_s: float) -> None:
    if busy_s:
        link.excuse(busy_s)
    print("hangs", flush=True)
    threading.Event().wait()


def checkpoint(step: int, save_s: float) -> dict[str, object]:
    return {"step": step, "stage_s": 0.0, "write_s": save_s, "final": False}


if __name__ == "__main__":
    sys.exit(main())
