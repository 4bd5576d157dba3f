"""What a scrape of the metrics costs: CPU seconds of one thread for a look into a record of so many
unfinished jobs, each with three attempts of which two were taken away, and ten checkpoints.

    python -m bench.scrape --jobs 1000
"""

from __future__ import annotations

import argparse
import json
import time

from spotd.api.metrics.exposition import Metrics
from spotd.domain.events import Event
from spotd.domain.health import USAGE
from spotd.domain.states import LeaveReason
from tests.spotd.api.rig import SPOT, Rig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    rig = Rig()
    try:
        for number in range(given.jobs):
            play(rig, number)
        print(json.dumps(measure(rig, given.rounds)))
    finally:
        rig.close()


def play(rig: Rig, number: int) -> None:
    """One job."""
    job_id = rig.submit(f"job-{number}", ago_s=9000)
    for attempt, ago_s in enumerate((8000, 6000, 4000)):
        node = rig.launch(job_id, SPOT, ago_s=ago_s)
        rig.train(node, ago_s=ago_s - 100, until_s=ago_s - 1500, first=0, last=1000)
        if attempt < 2:
            rig.leave(node, ago_s - 1600, LeaveReason.PREEMPTED, "preempt notice")
    for step in range(7):
        saved = {"step": 1001 + step, "manifest": f"m{step}", "bytes": 1 << 30, "write_s": 3.0}
        rig.say(node, 900 - step, "checkpoint", **saved, trigger="cadence")
    for ago_s in (700, 400, 100):
        use = Event(USAGE, "", node.id, data={"window_s": 300.0, "gpu": 0.8})
        rig.store.events.add(job_id, use, rig.ago(ago_s))


def measure(rig: Rig, rounds: int) -> dict[str, object]:
    """Each by a look of its own; of the first, which reads what later ones keep, by itself."""
    metrics, took = Metrics(rig.context()), []
    for _ in range(rounds + 1):
        began_s, wall_s = time.thread_time(), time.monotonic()
        text = metrics.text()
        took.append((time.thread_time() - began_s, time.monotonic() - wall_s))
        metrics.invalidate()
    metrics.text()
    kept_s = time.thread_time()
    metrics.text()
    kept_s = time.thread_time() - kept_s
    return {
        "first_cpu_s": round(took[0][0], 3),
        "cpu_s": [round(cpu, 3) for cpu, _ in took[1:]],
        "wall_s": [round(wall, 3) for _, wall in took[1:]],
        "kept_cpu_s": round(kept_s, 4),
        "bytes": len(text),
        "series": sum(not line.startswith(b"#") for line in text.splitlines()),
    }


if __name__ == "__main__":
    main()
