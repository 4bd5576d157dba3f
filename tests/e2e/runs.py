"""One disturbed run from its seed to its verdict: for the tests and for the soak."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

from spotd.demo.box import BoxError, running_box
from spotd.demo.heads import HeadWatch
from spotd.errors import UserError
from tests.e2e.rig import MACHINE, SCENARIO, Reference, Run, job_file
from tests.e2e.scenarios import SCENARIOS
from tests.e2e.verdict import judge
from tests.rigs.processes import carrying

# Under load another cloud may answer first. GCP says "within 30 s" and nothing else: a machine of
# it that is ended after four has a cloud that broke its word, and a node that believed it.
INFRA = {"box": "local-aws"}


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
    story: list[str] = []
    machines: list[str] = []
    try:
        with running_box(folder, SCENARIO, python=python) as box:
            job = job_file(python, infra=INFRA.get(scenario, "*"))
            job_id = box.submit(job, f"{scenario}-{seed}")
            run = Run(box, job_id, Random(f"{scenario} {seed}"), story)
            try:
                with HeadWatch(box.checkpoints_url, job_id) as watch:
                    SCENARIOS[scenario](run)
                wrong = judge(run, reference, watch.versions)
            finally:
                machines = run.machines()
                story += _events(run)
    except (BoxError, UserError) as error:
        wrong = [str(error)]
    left = [pid for machine in machines for pid in carrying(MACHINE, machine)]
    if left:
        wrong.append(f"processes left behind: {left}")
    wall_s = round(time.monotonic() - began_s, 1)
    return Outcome(scenario, seed, wall_s, tuple(wrong), tuple(story))


def _events(run: Run) -> list[str]:
    """What the daemon says about it."""
    if run.look() is None:
        return ["the daemon does not answer", run.box.tail("daemon")]
    return [
        f"{event['at']}  {event['kind']}: {event['text']}" for event in run.box.events(run.job_id)
    ]
