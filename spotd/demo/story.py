"""The main job: preempted three times on three small clouds, finished, and run once more alone."""

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
STEP_MS = 100  # at least, so that a fast machine does not finish before it is preempted
SIZE = "--layers 3 --width 96 --block 96 --batch 6"
EVERY_S = 4  # checkpoint cadence: what a sudden death may cost
REPORT_S = 1  # between two reports of steps
TRAIN_S = 6.5  # how long a machine trains before it is struck: in between two checkpoints
# Only the next listing of the cloud tells of a silent death, and those come every 10 s from the
# daemon's start on: struck at a fixed time, the demo would always be as lucky.
LUCK_S = 10.0
RECOVERY_TIMEOUT_S = 90.0
STILL_TIMEOUT_S = 240.0  # without a step, or without an end after the last one

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
    """How one machine is taken away."""

    text: str
    mode: str
    notice_s: float = 0.0
    thaw_after_s: float | None = None
    zombie_s: float = 15.0

    def order(self) -> dict[str, Any]:
        """The body of the cloud's control call."""
        kind = "preempt" if self.mode == "notice" else "none"
        order: dict[str, Any] = {"kind": kind, "mode": self.mode}
        if self.mode == "notice":
            order["notice_s"] = self.notice_s
        if self.thaw_after_s is not None:
            order |= {"thaw_after_s": self.thaw_after_s, "zombie_s": self.zombie_s}
        return order


@dataclass(frozen=True)
class Ended:
    """The exit code of a machine's program, and when its own journal says so."""

    code: int
    at_us: int


STRIKES = (
    InjectedFault("freezes and is cut off, without a word", "silent", thaw_after_s=32.0),
    InjectedFault("gets the cloud's notice: 30 s left", "notice", 30.0),
    InjectedFault("gets the cloud's notice: 120 s left", "notice", 120.0),
)


def job_file(name: str, steps: int) -> str:
    """The demo's job as a user would write it."""
    program = f"{shlex.quote(sys.executable)} -m trainer.train --steps {steps}"
    return f"""\
name: {name}
resources:
  accelerators: H100:8
  use_spot: true
run: {program} {SIZE} --step-time-ms {STEP_MS} --threads 1 --seed 7
spotd:
  checkpoint:
    engine: spotd
    every: {EVERY_S}s
  progress_every: {REPORT_S}s
"""


class DemoRun:
    """Runs the demo's two jobs in a started box and tells `screen` what happens."""

    def __init__(self, box: Box, screen: Screen, steps: int = STEPS) -> None:
        self.box = box
        self.screen = screen
        self.steps = steps
        self.zombie: Ended | None = None
        self.heads: Sequence[Head] = ()
        self._seen = 0
        self._zombie: tuple[str, int] | None = None

    def preempted(self) -> str:
        """The job that loses three machines; its id once it has finished."""
        job_id = self.box.submit(job_file("demo", self.steps), "demo")
        with HeadWatch(self.box.checkpoints_url, job_id, self.box.store_options) as watch:
            self.heads = watch.versions
            self._strike(job_id)
            self._finish(job_id)
        return job_id

    def _strike(self, job_id: str) -> None:
        for number, strike in enumerate(STRIKES, start=1):
            node = self._await_training(job_id, number)
            luck_s = random.uniform(0, LUCK_S) if strike.mode == "silent" else 0.0  # noqa: S311
            self._pause(job_id, TRAIN_S + luck_s)
            where = f"{node['provider']}/{node['zone']}"
            self.screen.say("strike", f"machine {number} of the job, in {where}, {strike.text}")
            self.box.preempt(str(node["instance_id"]), **strike.order())
            if strike.thaw_after_s is not None:
                self._zombie = (str(node["instance_id"]), int(node["generation"]))

    def undisturbed(self) -> str:
        """The same job, left alone; its id once it has finished."""
        self.screen.say("demo", "now the same job once more, uninterrupted, to compare")
        job_id = self.box.submit(job_file("uninterrupted", self.steps), "uninterrupted")
        self._finish(job_id)
        return job_id

    def _await_training(self, job_id: str, generation: int) -> dict[str, Any]:
        def ask() -> dict[str, Any] | None:
            job = self._look(job_id)
            if job["phase"] in FINISHED:
                raise BoxError(f"the job ended too early: {job['outcome_text']}")
            nodes = [n for n in job["nodes"] if n["state"] == "running"]
            return next((n for n in nodes if n["generation"] == generation), None)

        return self._until(ask, f"generation {generation} to train", RECOVERY_TIMEOUT_S) or {}

    def _pause(self, job_id: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._look(job_id)
            time.sleep(0.1)

    def _finish(self, job_id: str) -> None:
        """However long it takes on a busy computer, as long as it makes steps."""
        newest = -1

        def ask() -> str:
            nonlocal newest
            job = self._look(job_id)
            gone = all(node["state"] == "gone" for node in job["nodes"])
            if job["phase"] in FINISHED and gone and self._zombie is None:
                return "over"
            before = newest
            newest = max([newest, *(int(node["step"]) for node in job["nodes"])])
            return "a step" if newest > before else ""

        while self._until(ask, f"{job_id} to make a step, or to end", STILL_TIMEOUT_S) != "over":
            pass
        job = self.box.job(job_id)
        if job["phase"] != "succeeded":
            raise BoxError(f"{job['name']} {job['phase']}: {job['outcome_text']}")

    def _until(self, ask: Callable[[], Any], what: str, timeout_s: float) -> Any:
        return wait_for(what, ask, timeout_s, every_s=0.1)

    def _look(self, job_id: str) -> dict[str, Any]:
        """Pass on what is new, and watch for the zombie."""
        for event in self.box.events(job_id, self._seen):
            self._seen = int(event["id"])
            self.screen.say(str(event["kind"]), str(event["text"]))
        job = self.box.job(job_id)
        self.screen.show(job, self.steps)
        self._look_for_zombie(job_id)
        return job

    def _look_for_zombie(self, job_id: str) -> None:
        """The frozen machine comes back to life after its successor claimed HEAD: its own journal,
        which nobody follows any more, says how that ends."""
        if self._zombie is None:
            return
        instance, generation = self._zombie
        folder = self.box.folder / "cloud" / "instances" / instance
        for path in folder.glob(f"**/{job_id}/g{generation}/journal.jsonl"):
            ended = how_it_ended(path)
            if ended is not None:
                self.zombie, self._zombie = ended, None
                refused = ended.code == EXIT_FENCED
                what = "tried to commit, and was refused" if refused else "was not refused"
                self.screen.say("zombie", f"the frozen machine woke up, {what} (exit {ended.code})")
                return


def how_it_ended(journal: Path) -> Ended | None:
    """How the program ended by a node's journal; None while it does not say."""
    try:
        lines = journal.read_bytes().splitlines()
    except OSError:
        return None  # the machine's disk is deleted while we look
    for line in reversed(lines):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        entry = entry.get("journal", entry)
        if entry.get("kind") == "exited":
            return Ended(int(entry["data"]["code"]), int(entry["at_us"]))
    return None
