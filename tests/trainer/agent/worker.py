"""A training program that speaks over the link, for tests of the agent. Not a test itself.

    worker.py [--deaf] [--save-s S] [--step-s S] [--steps N] [--rank N]
              [--hang-at N] [--busy-s S] [--until FILE] [--plan-s S]

`--deaf` ignores the flag and SIGTERM. `--hang-at` makes no step after that one, or none until there
is a FILE; `--busy-s` says so before. With `--rank` it tells of its steps as one of several ranks,
of which the first alone reports. `--plan-s` plans for a notice: it says that it trains on, and so
long before the end that it saves. Every line that it prints begins with what it is about.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
import sys
import threading
import time
from pathlib import Path

from spotd import wire
from trainer.hook.spotd_hook.agent_client import AgentClient


def plan(link: AgentClient, plan_s: float, planned: str) -> str:
    """Return the plan for a notice, if there is one by now."""
    notice = link.flag.notice_deadline
    if not plan_s or notice is None:
        return planned
    action = "save" if notice - time.monotonic() <= plan_s else "train"
    if action != planned:
        link.send(wire.PLAN, {"status": "planned", "action": action})
    return action


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--deaf", action="store_true")
    parser.add_argument("--save-s", type=float, default=0.0)
    parser.add_argument("--step-s", type=float, default=0.02)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--hang-at", type=int, default=0)
    parser.add_argument("--busy-s", type=float, default=0.0)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--until", type=Path)
    parser.add_argument("--plan-s", type=float, default=0.0)
    parser.add_argument("--plans", action="store_true")
    args = parser.parse_args()
    faulthandler.register(signal.SIGUSR2)
    termed: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: termed.append(number))
    link = AgentClient.connect(os.environ, args.rank or 0)
    link.send(wire.READY, {"plans": True} if args.plans else {})
    link.wait_flag(5.0)
    print("claim", *link.current_claim(), flush=True)
    link.send(wire.CLAIMED, {"step": 0, "manifest": ""})
    saves, planned = 0, ""
    for step in range(1, args.steps + 1):
        time.sleep(args.step_s)
        progress = {"from_step": step, "to_step": step, "losses": [0.5], "busy_s": args.step_s}
        if not args.rank:
            link.send(wire.PROGRESS, progress)
        if args.rank is not None:
            link.set_step(step)
        if step == args.hang_at:
            hang(link, args.busy_s, args.until)
        planned = plan(link, args.plan_s, planned)
        if link.flag.saves_requested > saves:
            saves = link.flag.saves_requested
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


def hang(link: AgentClient, busy_s: float, until: Path | None) -> None:
    if busy_s:
        link.report_busy(busy_s)
    print("hangs", flush=True)
    if until is not None:
        while not until.exists():
            time.sleep(0.01)
        return
    threading.Event().wait()


def checkpoint(step: int, save_s: float) -> dict[str, object]:
    return {"step": step, "stage_s": 0.0, "write_s": save_s, "final": False}


if __name__ == "__main__":
    sys.exit(main())
