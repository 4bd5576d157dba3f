"""How soon does the other daemon take over? Two real ones on one PostgreSQL, one of them hurt.

    python -m bench.takeover [--samples 20] [--kinds killed,frozen,cut] [--lease-s 20] [--first 0]
                             [--json FILE]

In each sample the daemon that holds every duty is hurt at a random moment (seeded), and the job's
machine gets a notice of preemption in the same instant: killed (kill -9), frozen (SIGSTOP), or cut
(nothing passes between it and its database any more, and nobody is told). Measured from there, by
the cloud's clock: `decision_s`, until the cloud was asked for the replacement, which only the other
daemon can do; and `duties_s`, until the other one holds every duty. Then the hurt one comes back,
an answer of a cloud that it had asked before in its hands, and it is the other's turn. Ends with 1
when a goal was missed, a sample is not there, the cloud's books show a machine too many, or the
database saw a duty's write by who did not hold the duty; `writes` is how many it saw in all.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spotd.api_routes import routes
from spotd.base.errors import UserError
from spotd.demo.box import Box, BoxError, wait_for
from tests.fixtures import postgres
from tests.fixtures.pair import Pair, Twin, machines, running_pair

GOAL_S = 45.0
AWAIT_S = 180.0
SETTLE_S = 60.0
POLL_S = 0.02
HURTS: dict[str, Callable[[Twin], None]] = {
    "killed": Twin.kill_daemon,
    "frozen": Twin.pause_daemon,
    "cut": lambda twin: twin.cable.cut(),
}
SCENARIO = "\n".join(
    f"""[[zone]]
personality = "{cloud}"
region = "{cloud}-region-{letter}"
name = "{cloud}-{letter}"
"""
    for cloud in ("aws", "gcp", "azure")
    for letter in "abcdefghijklmnopqrstuvwx"
)
# Prices are asked for all the time, and answers take a while: whoever is hurt has a question on its
# way, and comes back with an old answer.
TIMING = "offers_every_s = 1.0\n"
SLOW = {"operation": "offers", "kind": "delay", "seconds": 1.0, "count": 0}
JOB = """\
name: patient
resources:
  cpus: 1+
  use_spot: true
run: sleep 100000
spotd:
  checkpoint: {engine: none}
"""


@dataclass(frozen=True)
class Outcome:
    """Of one kind. `writes` of duties the database saw; `wrong` is what must not be."""

    samples: tuple[Sample, ...]
    writes: int
    wrong: tuple[str, ...]


@dataclass(frozen=True)
class Sample:
    """One takeover, in seconds from the moment of the hurt."""

    decision_s: float
    duties_s: float


def measure(kind: str, samples: int, folder: Path, lease_s: float, first: int = 0) -> Outcome:
    """`samples` takeovers; `first` is the number, and so the seed, of the first."""
    found = []
    with (
        Box(folder / "cloud", SCENARIO) as cloud,
        postgres.running() as server,
    ):
        cloud.start_cloud()
        cloud.call_cloud("/control/fault", SLOW)
        with running_pair(folder, server, cloud, f"lease_s = {lease_s:g}\n{TIMING}") as pair:
            job_id = pair.twins[0].submit(JOB, "takeover")
            for number in range(first, first + samples):
                with pair.explaining():
                    sample = _take_over(pair, job_id, kind, random.Random(f"{kind} {number}"))
                found.append(sample)
                print(kind, number + 1, asdict(sample), flush=True, file=sys.stderr)
            pair.twins[0].client.call(routes.CANCEL_JOB(job=job_id))
            wait_for("the last machine's end", lambda: not _running(pair, job_id), AWAIT_S)
            wrong = pair.doubles(job_id) + [f"written by {box}" for box, _ in pair.intruders()]
            rows = len(cloud.meter())
            if rows != samples + 1:
                wrong.append(f"{rows} machines were launched for {samples} preemptions")
            writes = sum(pair.writes_of(twin) for twin in pair.twins)
    return Outcome(tuple(found), writes, tuple(wrong))


def _take_over(pair: Pair, job_id: str, kind: str, chance: random.Random) -> Sample:
    (trained,) = wait_for("one machine to run", lambda: _at_work(pair, job_id), AWAIT_S)
    holder, other = _sorted_by_duty(pair)
    _write(pair, holder)
    time.sleep(chance.uniform(0.0, 5.0))  # anywhere between two renewals
    hurt_s = time.time()
    HURTS[kind](holder)
    pair.cloud.preempt(trained, kind="preempt", mode="notice", notice_s=60)

    duties_s: list[float] = []

    def taken_over() -> list[dict[str, Any]]:
        if not duties_s and pair.holds_all(other):
            duties_s.append(time.time() - hurt_s)
        fresh = [row for row in _running(pair, job_id) if row["instance_id"] != trained]
        return fresh if duties_s else []

    (fresh,) = wait_for("the other to take over", taken_over, AWAIT_S, POLL_S)
    _come_back(holder, kind)
    _write(pair, other)
    return Sample(fresh["launched_at_us"] / 1e6 - hurt_s, duties_s[0])


def _write(pair: Pair, twin: Twin) -> None:
    """Have that one write prices, which do not stand still."""
    seen = pair.writes_of(twin)

    def written() -> bool:
        price = {"personality": "aws", "capacity_type": "on_demand"}
        pair.cloud.call_cloud("/control/price", {"usd_per_hour": 90 + time.time() % 7, **price})
        return pair.writes_of(twin) > seen

    wait_for("prices to be written", written, AWAIT_S)


def _come_back(twin: Twin, kind: str) -> None:
    if kind == "killed":
        twin.start_daemon()
    elif kind == "frozen":
        twin.resume_daemon()
    twin.cable.mend()

    def answers() -> bool:
        try:
            return bool(twin.client.call(routes.LIST_JOBS()))
        except UserError:
            return False

    wait_for("the hurt one to be back", answers, AWAIT_S)


def _running(pair: Pair, job_id: str) -> list[dict[str, Any]]:
    return [row for row in machines(pair.cloud, job_id) if not row["ended_at_us"]]


def _at_work(pair: Pair, job_id: str) -> list[str]:
    """The job's machine, when both daemons agree that it has one and that it runs."""
    found = set()
    for twin in pair.twins:
        nodes = [node for node in twin.job(job_id)["nodes"] if node["state"] != "gone"]
        found |= {(node["instance_id"], node["state"]) for node in nodes}
    return [name for name, _ in found] if {state for _, state in found} == {"running"} else []


def _sorted_by_duty(pair: Pair) -> list[Twin]:
    """Who holds all, then the other. On a busy machine a lease may run out while its holder lives,
    and both hold some; then one hands its own over by a clean end."""
    try:
        return wait_for("one to hold every duty", lambda: _by_duty(pair), SETTLE_S)
    except BoxError:
        twin = pair.twins[1]
        assert twin.daemon is not None
        print("both hold some: one hands over", flush=True, file=sys.stderr)
        twin.daemon.terminate()
        twin.daemon.wait(AWAIT_S)
        twin.start_daemon()
        return wait_for("one to hold every duty", lambda: _by_duty(pair), AWAIT_S)


def _by_duty(pair: Pair) -> list[Twin]:
    """Who holds all, then the other."""
    first, second = pair.twins
    if pair.holds_all(first):
        return [first, second]
    return [second, first] if pair.holds_all(second) else []


def summary(outcome: Outcome) -> dict[str, Any]:
    """The figures of one kind, and the raw samples."""
    found: Sequence[Sample] = outcome.samples
    figures: dict[str, Any] = {"samples": len(found), "writes": outcome.writes}
    for name in ("decision_s", "duties_s"):
        values = [getattr(sample, name) for sample in found]
        figures[f"{name}_median"] = round(statistics.median(values), 2)
        figures[f"{name}_worst"] = round(max(values), 2)
    return {**figures, "raw": [asdict(sample) for sample in found]}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--kinds", default=",".join(HURTS))
    parser.add_argument("--lease-s", type=float, default=20.0)
    parser.add_argument("--first", type=int, default=0, help="number of the first sample")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    machine = f"{platform.machine()}, {platform.system()}, local cloud, PostgreSQL without fsync"
    report: dict[str, Any] = {"machine": machine, "lease_s": options.lease_s, "kinds": {}}
    report["load_before"] = os.getloadavg()
    missed = []
    for kind in options.kinds.split(","):
        with tempfile.TemporaryDirectory(prefix="sp-", dir="/tmp") as folder:
            where = Path(folder)
            outcome = measure(kind, options.samples, where, options.lease_s, options.first)
        figures = report["kinds"][kind] = summary(outcome)
        print(kind, json.dumps({k: v for k, v in figures.items() if k != "raw"}), flush=True)
        worst = {name: figures[f"{name}_worst"] for name in ("decision_s", "duties_s")}
        late = [f"{name} {value:g}" for name, value in worst.items() if value > GOAL_S]
        missed += [f"{kind}: {text}" for text in [*outcome.wrong, *late]]
        if len(outcome.samples) != options.samples:
            missed.append(f"{kind}: {len(outcome.samples)} of {options.samples} samples")
    report["load_after"] = os.getloadavg()
    print("load average", [round(load, 1) for load in report["load_before"] + report["load_after"]])
    print("\n".join(missed) or f"all within {GOAL_S:g} s, nothing launched twice")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({**report, "missed": missed}, indent=2) + "\n")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
