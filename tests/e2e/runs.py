"""One disturbed run from its seed to its verdict: for the tests and for the soak."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from spotd.base.errors import UserError
from spotd.demo.box import Box, BoxError, running_box
from spotd.demo.heads import HeadWatch
from tests.e2e.rig import MACHINE, SCENARIO, STEP_MS, Reference, Run, job_file
from tests.e2e.scenarios import SCENARIOS
from tests.e2e.verdict import judge
from tests.fixtures.processes import carrying

# Under load another cloud may answer first. GCP says "within 30 s" and nothing else: a machine of
# it that is ended after four has a cloud that broke its word, and a node that believed it.
INFRA = {"box": "local-aws"}

# A program trains on until its last save must begin: there is to be more work than the longest
# notice has room for, on the fastest machine.
NOTICED_STEP_MS = 160
NOTICED = ("daemon", "box")


@dataclass(frozen=True)
class Outcome:
    """`wrong` is empty when all is well; `story` is what was done, and when."""

    scenario: str
    seed: int
    wall_s: float
    wrong: tuple[str, ...]
    story: tuple[str, ...]

    def report(self) -> str:
        """For people: everything about a run that went wrong."""
        lines = [
            f"{self.scenario}, seed {self.seed}, {self.wall_s:.1f} s",
            *self.wrong,
            *self.story,
        ]
        return "\n  ".join(lines)


def perform(scenario: str, seed: int, python: Path, reference: Reference, folder: Path) -> Outcome:
    """Run the job on a box of its own in `folder`, disturb it, and judge. Raises nothing of ours:
    what goes wrong is in the outcome."""
    began_s = time.monotonic()
    try:
        with running_box(folder, SCENARIO, python=python) as box:
            outcome = disturb(box, scenario, seed, reference)
            machines = [str(row["instance_id"]) for row in box.meter()]
    except (BoxError, UserError) as error:
        return Outcome(scenario, seed, round(time.monotonic() - began_s, 1), (str(error),), ())
    return replace(outcome, wrong=(*outcome.wrong, *left_behind(machines)))


def disturb(box: Box, scenario: str, seed: int, reference: Reference) -> Outcome:
    """The same on a box that runs, and that others may have had before: no other meanwhile."""
    began_s = time.monotonic()
    story: list[str] = []
    try:
        before = frozenset(str(row["instance_id"]) for row in box.meter())
        step_ms = NOTICED_STEP_MS if scenario in NOTICED else STEP_MS
        job = job_file(box.python, infra=INFRA.get(scenario, "*"), step_ms=step_ms)
        job_id = box.submit(job, f"{scenario}-{seed}")
        run = Run(box, job_id, Random(f"{scenario} {seed}"), story, before=before)
        try:
            with HeadWatch(box.checkpoints_url, job_id) as watch:
                SCENARIOS[scenario](run)
            wrong = judge(run, reference, watch.versions)
        finally:
            story += _events(run)
    except (BoxError, UserError) as error:
        wrong = [str(error)]
    return Outcome(scenario, seed, round(time.monotonic() - began_s, 1), tuple(wrong), tuple(story))


def left_behind(machines: Iterable[str]) -> list[str]:
    """What is wrong once their box has stopped."""
    left = [pid for machine in machines for pid in carrying(MACHINE, machine)]
    return [f"processes left behind: {left}"] if left else []


def _events(run: Run) -> list[str]:
    """What the daemon says about it."""
    if run.look() is None:
        return ["the daemon does not answer", run.box.tail("daemon")]
    return [
        f"{event['at']}  {event['kind']}: {event['text']}" for event in run.box.events(run.job_id)
    ]
