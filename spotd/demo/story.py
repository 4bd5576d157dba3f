"""Run the demo's two jobs: one preempted three times, and the same job uninterrupted."""

from __future__ import annotations

import json
import random
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotd.demo.box import Box, BoxError, wait_for
from spotd.demo.heads import HeadWatch
from spotd.demo.screen import Screen
from spotd.domain.phase import FINISHED
from spotd.wire import EXIT_FENCED, Head

STEPS = 400
STEP_MS = 100  # minimum time of a step, so that a fast machine does not finish too early
MODEL_ARGUMENTS = "--layers 3 --width 96 --block 96 --batch 6"
CHECKPOINT_EVERY_S = 4  # checkpoint interval: the most that a sudden death may lose
REPORT_EVERY_S = 1  # interval of progress reports
FAULT_AFTER_S = 6.5  # training time of a machine before its fault: between two checkpoints
# A silent death is detected by the next listing, every 10 s from the daemon's start. A random delay
# keeps the demo from always measuring the same detection time.
MAX_FAULT_JITTER_S = 10.0
RECOVERY_TIMEOUT_S = 90.0
NO_PROGRESS_TIMEOUT_S = 240.0  # limit without a new step, or from the last step to the end

SCENARIO = """\
# Three small clouds. Prices make the cheapest offer move from cloud to cloud as machines are lost.
[[zone]]
personality = "aws"
region = "us-east-2"
name = "us-east-2a"
[[zone]]
personality = "aws"
region = "us-east-2"
name = "us-east-2b"
price_factor = 1.7
[[zone]]
personality = "gcp"
region = "us-central1"
name = "us-central1-a"
[[zone]]
personality = "azure"
region = "eastus"
name = "eastus-1"
"""


@dataclass(frozen=True)
class InjectedFault:
    """How the local cloud takes one machine away."""

    text: str
    mode: str
    notice_s: float = 0.0
    thaw_after_s: float | None = None
    zombie_s: float = 15.0

    def request_body(self) -> dict[str, Any]:
        """Return the body of the cloud's control call."""
        kind = "preempt" if self.mode == "notice" else "none"
        body: dict[str, Any] = {"kind": kind, "mode": self.mode}
        if self.mode == "notice":
            body["notice_s"] = self.notice_s
        if self.thaw_after_s is not None:
            body |= {"thaw_after_s": self.thaw_after_s, "zombie_s": self.zombie_s}
        return body


@dataclass(frozen=True)
class ProgramExit:
    """The exit code of a machine's program, and its time in the machine's journal."""

    code: int
    at_us: int


FAULTS = (
    InjectedFault("freezes and is cut off, without a word", "silent", thaw_after_s=32.0),
    InjectedFault("gets the cloud's notice: 30 s left", "notice", 30.0),
    InjectedFault("gets the cloud's notice: 120 s left", "notice", 120.0),
)


def job_file(name: str, steps: int) -> str:
    """Return the demo's job file."""
    program = f"{shlex.quote(sys.executable)} -m trainer.train --steps {steps}"
    return f"""\
name: {name}
resources:
  accelerators: H100:8
  use_spot: true
run: {program} {MODEL_ARGUMENTS} --step-time-ms {STEP_MS} --threads 1 --seed 7
spotd:
  checkpoint:
    engine: spotd
    every: {CHECKPOINT_EVERY_S}s
  progress_every: {REPORT_EVERY_S}s
"""


class DemoRun:
    """Runs the demo's two jobs in a started box and shows their events on `screen`."""

    def __init__(self, box: Box, screen: Screen, steps: int = STEPS) -> None:
        self.box = box
        self.screen = screen
        self.steps = steps
        self.zombie_exit: ProgramExit | None = None
        self.head_versions: Sequence[Head] = ()
        self._last_event_id = 0
        self._zombie: tuple[str, int] | None = None

    def run_preempted(self) -> str:
        """Run the job that loses three machines, and return its id. Raises BoxError."""
        job_id = self.box.submit(job_file("demo", self.steps), "demo")
        with HeadWatch(self.box.checkpoints_url, job_id, self.box.store_options) as watch:
            self.head_versions = watch.versions
            self._inject_faults(job_id)
            self._finish(job_id)
        return job_id

    def _inject_faults(self, job_id: str) -> None:
        for number, fault in enumerate(FAULTS, start=1):
            node = self._await_training(job_id, number)
            jitter_s = random.uniform(0, MAX_FAULT_JITTER_S) if fault.mode == "silent" else 0.0  # noqa: S311
            self._pause(job_id, FAULT_AFTER_S + jitter_s)
            location = f"{node['provider']}/{node['zone']}"
            self.screen.add_event(
                "fault", f"machine {number} of the job, in {location}, {fault.text}"
            )
            self.box.preempt(str(node["instance_id"]), **fault.request_body())
            if fault.thaw_after_s is not None:
                self._zombie = (str(node["instance_id"]), int(node["generation"]))

    def run_reference(self) -> str:
        """Run the same job without faults, and return its id. Raises BoxError."""
        self.screen.add_event("demo", "now the same job once more, uninterrupted, to compare")
        job_id = self.box.submit(job_file("uninterrupted", self.steps), "uninterrupted")
        self._finish(job_id)
        return job_id

    def _await_training(self, job_id: str, generation: int) -> dict[str, Any]:
        def training_node() -> dict[str, Any] | None:
            job = self._poll(job_id)
            if job["phase"] in FINISHED:
                raise BoxError(f"the job ended too early: {job['outcome_text']}")
            nodes = [node for node in job["nodes"] if node["state"] == "running"]
            return next((node for node in nodes if node["generation"] == generation), None)

        return (
            self._wait_until(training_node, f"generation {generation} to train", RECOVERY_TIMEOUT_S)
            or {}
        )

    def _pause(self, job_id: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._poll(job_id)
            time.sleep(0.1)

    def _finish(self, job_id: str) -> None:
        """Wait until the job has finished. It may take any time as long as it makes steps."""
        newest_step = -1

        def progress() -> str:
            nonlocal newest_step
            job = self._poll(job_id)
            gone = all(node["state"] == "gone" for node in job["nodes"])
            if job["phase"] in FINISHED and gone and self._zombie is None:
                return "over"
            previous = newest_step
            newest_step = max([newest_step, *(int(node["step"]) for node in job["nodes"])])
            return "a step" if newest_step > previous else ""

        while (
            self._wait_until(progress, f"{job_id} to make a step, or to end", NO_PROGRESS_TIMEOUT_S)
            != "over"
        ):
            pass
        job = self.box.job(job_id)
        if job["phase"] != "succeeded":
            raise BoxError(f"{job['name']} {job['phase']}: {job['outcome_text']}")

    def _wait_until(self, check: Callable[[], Any], description: str, timeout_s: float) -> Any:
        return wait_for(description, check, timeout_s, every_s=0.1)

    def _poll(self, job_id: str) -> dict[str, Any]:
        """Fetch the job, show its new events, and check for the revived machine."""
        for event in self.box.events(job_id, self._last_event_id):
            self._last_event_id = int(event["id"])
            self.screen.add_event(str(event["kind"]), str(event["text"]))
        job = self.box.job(job_id)
        self.screen.update_job(job, self.steps)
        self._check_zombie(job_id)
        return job

    def _check_zombie(self, job_id: str) -> None:
        """Read from the frozen machine's journal how its program ended after it was revived.

        By then its successor has claimed HEAD, and the daemon does not follow it any more.
        """
        if self._zombie is None:
            return
        instance, generation = self._zombie
        folder = self.box.folder / "cloud" / "instances" / instance
        for path in folder.glob(f"**/{job_id}/g{generation}/journal.jsonl"):
            exit_ = read_program_exit(path)
            if exit_ is not None:
                self.zombie_exit, self._zombie = exit_, None
                refused = exit_.code == EXIT_FENCED
                outcome = "tried to commit, and was refused" if refused else "was not refused"
                self.screen.add_event(
                    "zombie", f"the frozen machine woke up, {outcome} (exit {exit_.code})"
                )
                return


def read_program_exit(path: Path) -> ProgramExit | None:
    """Return how a program exited, from its node's journal; None if it has not."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return None  # the machine's disk was deleted meanwhile
    for line in reversed(lines):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        entry = entry.get("journal", entry)
        if entry.get("kind") == "exited":
            return ProgramExit(int(entry["data"]["code"]), int(entry["at_us"]))
    return None
