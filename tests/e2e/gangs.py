"""Gangs under torchrun on the local cloud, one machine of which is lost: what became of the job."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from providers.stores import open_store
from spotd.demo import s3
from spotd.demo.box import Box, running_box
from spotd.domain.phase import FINISHED
from tests.e2e.hardships import TIMING
from tests.e2e.rig import FINISH_TIMEOUT_S, SIZE, UP_TIMEOUT_S, Run, open_records
from tests.fixtures import netns
from tests.trainer.rig import ROOT
from trainer.reference.compare import first_difference

# One region: who joins later has to be in the network of the others.
SCENARIO = "\n".join(
    f'[[zone]]\npersonality = "aws"\nregion = "aws-region"\nname = "aws-{letter}"\n'
    for letter in "abcd"
)
STEP_MS = 50


@dataclass(frozen=True)
class Story:
    """One gang and what happens to it; a notice of 0 s is a death."""

    machines: int
    notice_s: float
    steps: int
    on_node_loss: str = "shrink"
    namespaces: bool = False  # each machine has a network, a disk and an OpenSSH of its own

    @property
    def arguments(self) -> str:
        """The program's: to the same bits on any number of ranks."""
        return f"--shard --virtual-ranks {self.machines} --steps {self.steps} {SIZE} --threads 1"

    def job_file(self, python: Path) -> str:
        torchrun = f"{shlex.quote(str(python))} -m torch.distributed.run --nproc-per-node 1"
        return f"""\
name: gang
num_nodes: {self.machines}
resources: {{infra: "*", cpus: 1+, use_spot: true}}
run: {torchrun} -m trainer.train {self.arguments} --device cpu --step-time-ms {STEP_MS}
spotd:
  on_node_loss: {self.on_node_loss}
  checkpoint: {{engine: spotd, every: 2s}}
  progress_every: 0.2s
"""


# What is played, and by what name.
STORIES = {
    "two, a death": Story(2, 0.0, 400),
    "two, a short notice": Story(2, 6.0, 600),
    "two, a long notice": Story(2, 60.0, 600),
    "two that wait, a death": Story(2, 0.0, 600, "wait"),
    "two that wait, a notice": Story(2, 60.0, 600, "wait"),
    "four, a death": Story(4, 0.0, 900),
    "four, a short notice": Story(4, 6.0, 900),
    "namespaces: two, a death": Story(2, 0.0, 600, namespaces=True),
    "namespaces: four, a death": Story(4, 0.0, 900, namespaces=True),
    "namespaces: four, a short notice": Story(4, 8.0, 900, namespaces=True),
}


@dataclass(frozen=True)
class Change:
    """From one attempt to the next: how many steps were made again, how long nobody trained, and
    the machines of both."""

    steps_lost: int
    without_s: float
    machines: tuple[int, int]

    def __str__(self) -> str:
        before, after = self.machines
        return f"{before} -> {after}: {self.steps_lost} steps lost, {self.without_s:.2f} s without"


@contextmanager
def _box(folder: Path, python: Path, story: Story) -> Iterator[Box]:
    if not story.namespaces:
        with running_box(folder, SCENARIO, python=python) as box:
            yield box
        return
    with netns.network() as network, s3.serving(network.gateway) as store:
        options: dict[str, Any] = {"disk": "256m", "bucket": store, "python": python}
        with netns.RealBox(network, folder, SCENARIO, TIMING, **options) as box:
            box.start()
            yield box


@contextmanager
def played(
    folder: Path, python: Path, story: Story, until: int = 60, patience: float = 1.0
) -> Iterator[tuple[Box, str]]:
    """The box and the job, which has ended well; it had lost one machine at step `until`. All is
    waited for `patience` times as long as otherwise."""
    with _box(folder, python, story) as box:
        run = Run(box, box.submit(story.job_file(python), "gang"), Random(1))
        run.training(until, timeout_s=patience * UP_TIMEOUT_S)
        last = story.machines - 1
        lost = next(node for node in box.job(run.job_id)["nodes"] if node["rank"] == last)
        if story.notice_s:
            run.preempt(lost["instance_id"], story.notice_s)
        else:
            run.die(lost["instance_id"], "reset")
        ended = box.wait_phase(run.job_id, set(FINISHED), 3 * patience * FINISH_TIMEOUT_S)
        assert ended["phase"] == "succeeded", ended["outcome_text"]
        assert ended["failures"] == 0, "a preemption is charged to nobody"
        run.finish()
        yield box, run.job_id


def changes(box: Box, job_id: str) -> list[Change]:
    """Between each attempt that trained and the next one."""
    records = open_records(box)
    try:
        rows, nodes = records.progress.rows(job_id), records.nodes.of_job(job_id)
    finally:
        records.close()
    whole = sum(node.generation == 1 and node.chosen for node in nodes)
    size = {node.generation: node.gang_size or whole for node in nodes if node.chosen}
    found, trained = [], sorted({row.generation for row in rows})
    for old, new in pairwise(trained):
        before = max((r for r in rows if r.generation == old), key=lambda row: row.to_step)
        after = min((r for r in rows if r.generation == new), key=lambda row: row.from_step)
        without_s = (after.first_at_us - before.last_at_us) / 1e6
        lost = before.to_step + 1 - after.from_step
        found.append(Change(lost, without_s, (size[old], size[new])))
    return found


def machines_of(box: Box, job_id: str) -> dict[str, list[dict[str, Any]]]:
    """By instance, its rows in the order of the attempts."""
    found: dict[str, list[dict[str, Any]]] = {}
    for node in sorted(box.job(job_id)["nodes"], key=lambda n: n["generation"]):
        if node["instance_id"]:
            found.setdefault(node["instance_id"], []).append(node)
    return found


def difference_from_one_machine(box: Box, job_id: str, story: Story, folder: Path) -> str | None:
    """From the state that the same program comes to alone and undisturbed; None for none."""
    alone = {"SPOTD_JOB_ID": "job", "SPOTD_STORE_URL": folder.as_uri(), "PYTHONPATH": str(ROOT)}
    command = [str(box.python), "-m", "trainer.train", *story.arguments.split(), "--device", "cpu"]
    subprocess.run(command, env={**os.environ, **alone}, check=True)
    ours = open_store(box.checkpoints_url, box.store_options)
    theirs = open_store(folder.as_uri())
    return first_difference(ours, job_id, theirs, "job")
