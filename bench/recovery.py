"""How fast is a recovery? Many preemptions on the local cloud, timed from the cloud's own clock.

    python bench/recovery.py [--samples 20] [--kinds aws,gcp,...] [--json FILE] [--step-ms 100]

Machines boot in no time here, so what is measured is everything that is ours: hearing the notice,
deciding, asking, connecting, starting the agent, importing torch, restoring, and the hand-over.
Times count from the moment that the notice is published at the metadata server, or the machine
dies. Kinds: aws, azure (polled each second), gcp (long poll), torchrun (two ranks, aws notice),
reset (dies with its connections reset), silent (cut off, and listed as terminated at once), frozen
(cut off, and listed as running until we end it: only silence tells, after `timing.lost_after_s`;
5 samples at most, of more than two minutes each). Each strike comes at a random moment (seeded) of
the period that decides how soon it is noticed: the clouds are listed every 10 s, which alone tells
of a silent death. Ends with 1 when a goal was missed or a sample is not there.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import re
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from figures import p95

from spotd.api_routes import routes
from spotd.demo.box import Box, BoxError, running_box, wait_for
from spotd.demo.facts import Recovery, recoveries
from spotd.domain.phase import FINISHED
from spotd.store.sql_store import open_store

EVERY_S = 3
SURVEY_S = 10.0  # between two listings of a cloud
AWAIT_S = 300.0  # more than the silence after which a machine that its cloud still lists is lost
# What the trainer says of itself, per machine.
READY = re.compile(r"ready in ([\d.]+) s, ([\d.]+) s of it to import torch")
RESTORED = re.compile(r"continues after step \d+, restored in ([\d.]+) s")
SCENARIO = "\n".join(
    f"""[[zone]]
personality = "{cloud}"
region = "{cloud}-region-{letter}"
name = "{cloud}-{letter}"
"""
    for cloud in ("aws", "gcp", "azure")
    for letter in "abcdefghijklmnopqrstuvwx"
)


@dataclass(frozen=True)
class Kind:
    """One way to lose a machine."""

    name: str
    cloud: str
    order: Mapping[str, Any]
    goals: Mapping[str, float]  # a figure and what it may be at most; steps have one of their own
    ranks: int = 1
    max_samples: int = 1000

    @property
    def noticed(self) -> bool:
        """Whether the cloud says so before."""
        return bool(self.order["mode"] == "notice")

    def pause_s(self, number: int) -> float:
        """How long the machine trains before it is struck."""
        period_s = EVERY_S if self.noticed else SURVEY_S
        return 2.0 + random.Random(f"{self.name} {number}").uniform(0, period_s)

    def job(self, name: str, step_ms: int) -> str:
        """A job that outlives every sample."""
        python = shlex.quote(sys.executable)
        launch = f"{python} -m"
        if self.ranks > 1:
            launch += f" torch.distributed.run --standalone --nproc-per-node {self.ranks} -m"
        return f"""\
name: {name}
resources:
  cpus: 1+
  use_spot: true
  infra: {self.cloud}
run: {launch} trainer.train --steps 1000000 --step-time-ms {step_ms} --threads 1 --batch 2
spotd:
  checkpoint: {{engine: spotd, every: {EVERY_S}s}}
  progress_every: 0.5s
"""


def _notice(seconds: float) -> dict[str, Any]:
    return {"kind": "preempt", "mode": "notice", "notice_s": seconds}


def _death(mode: str) -> dict[str, Any]:
    return {"kind": "none", "mode": mode}


_REQUEST, _DEATH = "notice_to_request_p95_s", "death_to_request_p95_s"
_GAPS = {"gap_median_s": 3.0, "gap_p95_s": 6.0}
_PLAIN = {"notice_to_first_step_median_s": 6.0, "notice_to_first_step_p95_s": 10.0, **_GAPS}
_TORCHRUN = {_REQUEST: 1.5, "notice_to_first_step_median_s": 9.0, **_GAPS}
KINDS = {
    kind.name: kind
    for kind in (
        Kind("silent", "gcp", _death("silent"), {_DEATH: 30.0}),
        Kind("reset", "aws", _death("reset"), {_DEATH: 5.0}),
        Kind("aws", "aws", _notice(120), {_REQUEST: 1.5, **_PLAIN}),
        Kind("azure", "azure", _notice(30), {_REQUEST: 1.5, **_PLAIN}),
        Kind("gcp", "gcp", _notice(30), {_REQUEST: 0.5, **_PLAIN}),
        Kind("torchrun", "aws", _notice(120), _TORCHRUN, ranks=2),
        Kind("frozen", "gcp", _death("frozen"), {}, max_samples=5),
    )
}


@dataclass(frozen=True)
class Said:
    """What the trainers of all machines said, in seconds."""

    prepare_s: list[float]  # importing torch included
    import_s: list[float]
    restore_s: list[float]


def measure(kind: Kind, samples: int, folder: Path, step_ms: int) -> tuple[list[Recovery], Said]:
    """`samples` recoveries of one job, one after the other."""
    with running_box(folder, SCENARIO) as box:
        job_id = box.submit(kind.job(f"bench-{kind.name}", step_ms), kind.name)
        struck: set[str] = set()
        for number in range(1, samples + 1):
            instance_id = _await_training(box, job_id, struck)
            time.sleep(kind.pause_s(number))
            box.preempt(instance_id, **kind.order)
            struck.add(instance_id)
            print(".", end="", flush=True, file=sys.stderr)
        _await_training(box, job_id, struck)
        time.sleep(1.0)
        found = _gather(box, job_id)
        box.client.call(routes.CANCEL_JOB(job=job_id))
        box.wait_phase(job_id, set(FINISHED), 60)
        said = _listen(box, job_id)
    print(f" {kind.name}", file=sys.stderr)
    return found, said


def _listen(box: Box, job_id: str) -> Said:
    """The job's whole output, of the machines that replaced another."""
    text, cursor, more = "", dict[str, int](), True
    while more:
        reply = box.client.call(routes.READ_LOGS(job=job_id), {"cursor": cursor})
        text += "".join(str(chunk["text"]) for chunk in reply["chunks"])
        cursor, more = reply["cursor"], reply["more"]
    prepared = [(float(whole), float(imported)) for whole, imported in READY.findall(text)[1:]]
    return Said(
        prepare_s=[whole for whole, _ in prepared],
        import_s=[imported for _, imported in prepared],
        restore_s=[float(seconds) for seconds in RESTORED.findall(text)[1:]],
    )


def _await_training(box: Box, job_id: str, struck: set[str]) -> str:
    """The id of the machine that trains, which was not struck yet."""

    def ask() -> str | None:
        job = box.job(job_id)
        if job["phase"] in FINISHED:
            raise BoxError(f"the job ended: {job['outcome_text']}")
        running = [str(n["instance_id"]) for n in job["nodes"] if n["state"] == "running"]
        return next((instance_id for instance_id in running if instance_id not in struck), None)

    return wait_for(f"machine {len(struck) + 1} to train", ask, AWAIT_S, every_s=0.1) or ""


def _gather(box: Box, job_id: str) -> list[Recovery]:
    takings = list(box.call_cloud("/control/state")["notices"])
    url = f"sqlite:///{box.folder / 'state' / 'spotd.db'}"
    store = open_store(url, now=lambda: 0, notify=lambda: None, deployment_factory=str)
    try:
        nodes, progress = store.nodes.of_job(job_id), store.progress.rows(job_id)
        return recoveries(nodes, progress, takings, box.meter())
    finally:
        store.close()


def summary(kind: Kind, found: Sequence[Recovery], said: Said) -> dict[str, Any]:
    """The figures of one kind, and the raw samples."""
    requests = [r.request_s for r in found]
    firsts = [r.first_step_s for r in found]
    gaps = [r.gap_s for r in found]
    median = statistics.median
    ssh_s = median(r.ssh_s - r.instance_s for r in found)
    ready_s = median(r.ready_s - r.ssh_s for r in found)
    import_s, prepare_s = median(said.import_s), median(said.prepare_s)
    hand_over_s = median(r.first_step_s - r.ready_s for r in found)
    parts = {
        "hear_and_decide_s": median(requests),
        "launch_s": median(r.instance_s - r.request_s for r in found),
        "ssh_and_agent_s": ssh_s,
        "start_of_python_s": ready_s - prepare_s,  # with torchrun: of the launcher and the ranks
        "torch_import_s": import_s,
        "model_and_data_s": prepare_s - import_s,
        "restore_s": median(said.restore_s),
        "hand_over_and_step_s": hand_over_s - median(said.restore_s),
    }
    return {
        "samples": len(found),
        "notice_to_request_p95_s" if kind.noticed else "death_to_request_p95_s": p95(requests),
        "notice_to_first_step_median_s": statistics.median(firsts),
        "notice_to_first_step_p95_s": p95(firsts),
        "gap_median_s": statistics.median(gaps),
        "gap_p95_s": p95(gaps),
        "steps_lost_max": max(r.steps_lost for r in found),
        "parts_median": {name: round(value, 3) for name, value in parts.items()},
        "raw": [asdict(r) for r in found],
    }


def judge(kind: Kind, figures: Mapping[str, Any], samples: int, step_ms: int) -> list[str]:
    """A line for each goal, the missed ones marked."""
    most = {**kind.goals, "steps_lost_max": 0 if kind.noticed else EVERY_S * 1000 // step_ms}
    verdicts = [(name, figures[name], goal, figures[name] <= goal) for name, goal in most.items()]
    found = figures["samples"]
    verdicts.append(("samples", found, samples, found == samples))
    return [
        f"{kind.name:9} {name:30} {value:8.3f}  goal {goal:6.1f}  {'met' if met else 'MISSED'}"
        for name, value, goal, met in verdicts
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--step-ms", type=int, default=100)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report: dict[str, Any] = {
        "machine": f"{platform.machine()}, {platform.system()}, local cloud, zero boot delay",
        "every_s": EVERY_S,
        "kinds": {},
        "goals": [],
    }
    with tempfile.TemporaryDirectory(prefix="spotd-") as folder:
        for name in options.kinds.split(","):
            kind = KINDS[name]
            samples = min(options.samples, kind.max_samples)
            found, said = measure(kind, samples, Path(folder) / name, options.step_ms)
            report["kinds"][name] = summary(kind, found, said)
            shown = {k: v for k, v in report["kinds"][name].items() if k != "raw"}
            print(name, json.dumps(shown, indent=2), flush=True)
            report["goals"] += judge(kind, shown, samples, options.step_ms)
    print("\n".join(report["goals"]))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return int(any(line.endswith("MISSED") for line in report["goals"]))


if __name__ == "__main__":
    sys.exit(main())
