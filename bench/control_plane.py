"""What does one daemon cost, and how fast does it decide, with many jobs?

    python bench/control_plane.py [--jobs 2000] [--ssh-nodes 200] [--minutes 1] [--json FILE]

Two plants, one after the other, each a real daemon with all its threads and a SQLite database:

* `jobs`: many running jobs whose machines are simulated behind a unix socket in place of SSH. CPU
  of an idle minute, resident memory, and, while 100 machines are reclaimed within a second, the
  time from the notice to the committed intent of its replacement.
* `ssh`: fewer machines, each a real SSH server on loopback, followed over real SSH.

Every job is submitted through the API and brought to running by the daemon itself. "Idle" means
that nothing happens to any machine: each sends a heartbeat every 2 s, progress every 5 s and a
checkpoint every 5 minutes, and the clouds are listed every 10 s. They print nothing in that minute;
"printing" is another one in which each prints ten lines every 10 s. Both processes share the
machine. Ends with 1 when a goal was missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from figures import p95
from plant import LINKS, Plant, Reading, running_plant

from spotd.demo.box import wait_for

EMPTY_S = 12.0  # until every duty of the empty daemon has run once
SETTLE_S = 15.0
BRING_UP_S = 1800.0
RECLAIM_WITHIN_S = 1.0
PRINT_EVERY_S = 10.0

# (part, figure, at most)
GOALS = (
    ("jobs", "resident_kb_per_job", 60.0),
    ("jobs", "seconds_behind", 2.0),  # else the daemon is idle because it does not listen
    ("jobs", "notice_to_plan_p95_s", 1.0),
    ("ssh", "resident_kb_per_node", 150.0),
    ("ssh", "threads_per_node", 1.0),
    ("ssh", "seconds_behind", 2.0),
    ("ssh", "idle_cpu_percent", 8.0),
)


def bring_up(plant: Plant, jobs: int) -> tuple[Reading, dict[str, Any]]:
    """Read the empty daemon, then have it run all jobs."""
    time.sleep(EMPTY_S)
    empty = plant.read()
    began_s = time.monotonic()
    plant.submit(jobs)
    wait_for(f"{jobs} running jobs", lambda: plant.running() >= jobs, BRING_UP_S, every_s=0.5)
    took_s = time.monotonic() - began_s
    time.sleep(SETTLE_S)
    return empty, {"bring_up_s": round(took_s, 1), "resident_empty_kb": empty.resident_kb}


def idle(plant: Plant, minutes: float) -> tuple[Reading, dict[str, Any]]:
    """A while in which nothing happens to any machine."""
    before = plant.read()
    time.sleep(60 * minutes)
    after = plant.read()
    span_s = after.at_s - before.at_s
    by_purpose = {
        purpose: round(100 * (used_s - before.thread_cpu_s.get(purpose, 0.0)) / span_s, 2)
        for purpose, used_s in after.thread_cpu_s.items()
    }
    recorded_per_s = (after.recorded - before.recorded) / span_s
    return after, {
        "idle_s": round(span_s, 1),
        "idle_cpu_s_per_minute": round(60 * (after.cpu_s - before.cpu_s) / span_s, 2),
        "idle_cpu_percent": round(100 * (after.cpu_s - before.cpu_s) / span_s, 2),
        "idle_cpu_percent_by_threads": dict(sorted(by_purpose.items())),
        "entries_recorded_per_s": round(recorded_per_s, 1),
        "seconds_behind": round((after.said - after.recorded) / max(recorded_per_s, 1e-9), 2),
        "passes_per_s": round((after.passes - before.passes) / span_s, 1),
    }


def reclaim(plant: Plant, jobs: int, number: int) -> dict[str, Any]:
    """Take `number` machines away within a second; how soon was each replacement decided?"""
    told = plant.ask_fleet(f"reclaim?number={number}&within_s={RECLAIM_WITHIN_S}")["told"]
    said_us = {row["job"]: row["said_us"] for row in told}
    wait_for("a plan for each notice", lambda: len(plant.plans()) >= len(told), 120)
    plans = plant.plans()
    began_s = time.monotonic()
    wait_for("every job to run again", lambda: plant.running() >= jobs, 300, every_s=0.2)
    heard = [(plan["planned_us"] - said_us[plan["job"]]) / 1e6 for plan in plans]
    handed = [(plan["planned_us"] - plan["handed_us"]) / 1e6 for plan in plans]
    return {
        "notices": len(told),
        "noticed_within_s": round((max(said_us.values()) - min(said_us.values())) / 1e6, 3),
        "planned": len({plan["job"] for plan in plans} & said_us.keys()),
        "notice_to_plan_median_s": round(statistics.median(heard), 3),
        "notice_to_plan_p95_s": round(p95(heard), 3),
        "recorded_to_plan_p95_s": round(p95(handed), 3),
        "all_running_again_s": round(time.monotonic() - began_s, 1),
        "notice_to_plan_s": sorted(round(value, 3) for value in heard),
    }


def measure_jobs(folder: Path, jobs: int, minutes: float) -> dict[str, Any]:
    """Many jobs, no SSH."""
    with running_plant(folder, pipe=True) as plant:
        empty, began = bring_up(plant, jobs)
        full, rest = idle(plant, minutes)
        per_job = (full.resident_kb - empty.resident_kb) / jobs
        figures = {"jobs": jobs, **began, "resident_kb": full.resident_kb}
        figures |= {"resident_kb_per_job": round(per_job, 1), **rest}
        return figures | reclaim(plant, jobs, min(100, jobs))


def measure_ssh(folder: Path, nodes: int, minutes: float) -> dict[str, Any]:
    """Fewer jobs, each machine over real SSH."""
    with running_plant(folder, pipe=False) as plant:
        empty, began = bring_up(plant, nodes)
        full, rest = idle(plant, minutes)
        per_node = (full.resident_kb - empty.resident_kb) / nodes
        figures = {"nodes": nodes, **began, "resident_kb": full.resident_kb}
        figures |= {"resident_kb_per_node": round(per_node, 1), "threads": full.threads}
        links = full.threads.get(LINKS, 0) - empty.threads.get(LINKS, 0)
        plant.ask_fleet(f"output?every_s={PRINT_EVERY_S}")
        time.sleep(SETTLE_S)
        _, printing = idle(plant, minutes)
        figures |= {"printing_cpu_percent": printing["idle_cpu_percent"]}
        return figures | {"threads_per_node": round(links / nodes, 2), **rest}


def judge(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Each goal with its figure."""
    return [
        {"figure": f"{part}.{name}", "value": report[part][name], "goal": most}
        | {"met": report[part][name] <= most}
        for part, name, most in GOALS
        if part in report
    ]


def sync_ms(folder: Path) -> float:
    """The median time of a small synchronous write, which every commit waits for."""
    times = []
    with (folder / "sync").open("wb", buffering=0) as file:
        for _ in range(21):
            began_s = time.perf_counter()
            file.write(b"x" * 4096)
            os.fsync(file.fileno())
            times.append(1000 * (time.perf_counter() - began_s))
    return round(statistics.median(times), 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2000, help="0: leave this part out")
    parser.add_argument("--ssh-nodes", type=int, default=200, help="0: leave this part out")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    parts = {"jobs": (measure_jobs, options.jobs), "ssh": (measure_ssh, options.ssh_nodes)}
    with tempfile.TemporaryDirectory(prefix="spotd-") as name:
        folder = Path(name)
        report: dict[str, Any] = {
            "machine": {
                "cpus": os.cpu_count(),
                "python": platform.python_version(),
                "sync_ms": sync_ms(folder),
            }
        }
        for part, (measure, number) in parts.items():
            if number:
                loads = [os.getloadavg()[0]]
                report[part] = measure(folder / part, number, options.minutes)
                report[part]["load_average"] = [*loads, os.getloadavg()[0]]
                hidden = ("notice_to_plan_s",)
                shown = {k: v for k, v in report[part].items() if k not in hidden}
                print(part, json.dumps(shown, indent=2), flush=True)
    report["goals"] = judge(report)
    for goal in report["goals"]:
        verdict = "met" if goal["met"] else "MISSED"
        print(f"{goal['figure']:32} {goal['value']:10.3f}  goal {goal['goal']:7.1f}  {verdict}")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return int(not all(goal["met"] for goal in report["goals"]))


if __name__ == "__main__":
    sys.exit(main())
