"""A tiny training job on a box of real processes, and where its processes are."""

from __future__ import annotations

import json
import os
import shlex
import signal
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from spotd.base.errors import UnreachableError
from spotd.demo.box import Box, BoxError, running_box, wait_for
from spotd.demo.facts import final_losses
from spotd.domain.phase import FINISHED
from spotd.store.interface import Store
from spotd.store.sql_store import open_store as open_database
from tests.fixtures.processes import alive, carrying

STEPS = 200
SEED = 3
SIZE = "--layers 1 --heads 2 --width 32 --block 32 --batch 4"
STEP_MS = 40  # at least
EVERY_S = 1
REPORT_S = 0.5
UP_TIMEOUT_S = 180.0
FINISH_TIMEOUT_S = 400.0
POLL_S = 0.1
MACHINE = "SPOTD_LOCAL_INSTANCE"  # in the environment of every process on a local machine

SCENARIO = "\n".join(
    f"""[[zone]]
personality = "{cloud}"
region = "{cloud}-region-{letter}"
name = "{cloud}-{letter}"
"""
    for cloud in ("aws", "gcp", "azure")
    for letter in "abcd"
)


def job_file(
    python: Path,
    steps: int = STEPS,
    seed: int = SEED,
    *,
    name: str = "tiny",
    infra: str = "*",
    step_ms: int = STEP_MS,
    more: str = "",
) -> str:
    """About eight seconds of training, unless a step takes longer; `more` is for its block of
    spotd's own."""
    program = f"{shlex.quote(str(python))} -m trainer.train --steps {steps} {SIZE}"
    return f"""\
name: {name}
resources:
  infra: "{infra}"
  cpus: 1+
  use_spot: true
run: {program} --step-time-ms {step_ms} --threads 1 --seed {seed}
spotd:
  checkpoint: {{engine: spotd, every: {EVERY_S}s}}
  progress_every: {REPORT_S}s
{more}"""


@dataclass(frozen=True)
class Reference:
    """The same job, left alone: where its final state is, and the loss of every step."""

    store: str
    job_id: str
    losses: dict[int, float]

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))


def load_reference(path: Path) -> Reference:
    """What `Reference.save` wrote."""
    data = json.loads(path.read_text())
    losses = {int(step): loss for step, loss in data["losses"].items()}
    return Reference(data["store"], data["job_id"], losses)


def make_reference(python: Path, folder: Path, steps: int = STEPS, seed: int = SEED) -> Reference:
    """Run the job uninterrupted. Raises BoxError."""
    with running_box(folder, SCENARIO, python=python) as box:
        job_id = box.submit(job_file(python, steps, seed), "reference")
        ended = box.wait_phase(job_id, set(FINISHED), FINISH_TIMEOUT_S)
        if ended["phase"] != "succeeded":
            raise BoxError(f"the reference {ended['phase']}: {ended['outcome_text']}")
        records = open_records(box)
        try:
            losses = final_losses(records.progress.rows(job_id))
        finally:
            records.close()
    if set(losses) != set(range(1, steps + 1)):
        raise BoxError(f"the reference reported {len(losses)} of {steps} steps")
    return Reference(box.checkpoints_url, job_id, losses)


def open_records(box: Box) -> Store:
    """The daemon's own database, to read."""
    url = f"sqlite:///{box.folder / 'state' / 'spotd.db'}"
    return open_database(url, now=lambda: 0, notify=lambda: None, deployment_factory=str)


@dataclass
class Run:
    """One job that is disturbed: `random` is where every moment comes from.

    `unheard` once the daemon was killed: a machine that goes before the next one listens takes its
    last reports with it. `agents_killed`: each may take along the one report that it was reading.
    `refused_s`: for so long the cloud ended nothing. `before`: the machines that the box had for
    others.
    """

    box: Box
    job_id: str
    random: Random
    story: list[str] = field(default_factory=list)
    began_s: float = field(default_factory=time.monotonic)
    unheard: bool = False
    agents_killed: int = 0
    refused_s: float = 0.0
    before: frozenset[str] = frozenset()

    def note(self, text: str) -> None:
        """What was done, for whoever has to find out why it went wrong."""
        self.story.append(f"{time.monotonic() - self.began_s:6.2f} s  {text}")

    def pause(self, low_s: float, high_s: float) -> None:
        time.sleep(self.random.uniform(low_s, high_s))

    # --- the job, by the daemon

    def look(self) -> dict[str, Any] | None:
        """The job as the daemon has it; None while nobody answers."""
        try:
            return self.box.job(self.job_id)
        except UnreachableError:
            return None

    def ended(self) -> bool:
        job = self.look()
        return job is not None and job["phase"] in FINISHED

    def training(
        self, step: int, generation: int = 1, timeout_s: float = UP_TIMEOUT_S
    ) -> dict[str, Any]:
        """The node that trains, once it is at `step`. Raises BoxError."""

        def ask() -> dict[str, Any] | None:
            job = self.look()
            if job is None:
                return None
            if job["phase"] in FINISHED:
                raise BoxError(f"the job ended too early: {job['outcome_text'] or job['phase']}")
            running = [n for n in job["nodes"] if n["state"] == "running"]
            fit = (n for n in running if n["generation"] >= generation and n["step"] >= step)
            return next(fit, None)

        what = f"generation {generation} at step {step}"
        return wait_for(what, ask, timeout_s, every_s=POLL_S) or {}

    def finish(self) -> None:
        """Until the job has ended and the daemon has seen every machine of it go."""

        def ask() -> bool:
            job = self.look()
            if job is None or job["phase"] not in FINISHED:
                return False
            return all(node["state"] == "gone" for node in job["nodes"])

        wait_for("the job to end", ask, FINISH_TIMEOUT_S, every_s=POLL_S)
        self.note("the job has ended")

    # --- the daemon

    def kill_daemon(self) -> None:
        self.unheard = True
        self.box.kill_daemon()
        self.note("the daemon was killed")

    def start_daemon(self) -> None:
        self.box.start_daemon()
        self.note("the daemon is back")

    def bounce_daemon(self) -> None:
        """Kill it, and start it again after a while."""
        self.kill_daemon()
        self.pause(0.0, 1.5)
        self.start_daemon()

    # --- machines

    def preempt(self, instance_id: str, notice_s: float) -> None:
        self.box.preempt(instance_id, kind="preempt", mode="notice", notice_s=notice_s)
        self.note(f"{instance_id} has a notice of {notice_s:.1f} s")

    def die(self, instance_id: str, mode: str) -> None:
        self.box.preempt(instance_id, kind="none", mode=mode)
        self.note(f"{instance_id} died ({mode})")

    def meter(self) -> list[dict[str, Any]]:
        """The cloud's own record of every machine since the job was submitted."""
        return [row for row in self.box.meter() if row["instance_id"] not in self.before]

    def machines(self) -> list[str]:
        """Instance ids of what the cloud ever gave, oldest first."""
        rows = sorted(self.meter(), key=lambda row: row["launched_at_us"])
        return [str(row["instance_id"]) for row in rows]

    def state_file(self, instance_id: str, name: str) -> Path | None:
        """A file of the node agent there; None while there is none."""
        folder = self.box.folder / "cloud" / "instances" / instance_id
        return next(folder.glob(f".spotd/{self.job_id}/g*/{name}"), None)

    def agent_pid(self, instance_id: str) -> int | None:
        """The node agent's process; None while none runs."""
        path = self.state_file(instance_id, "agent.pid")
        text = path.read_text() if path else ""
        return int(text) if text.endswith("\n") and alive(int(text)) else None

    def trainer_pid(self, instance_id: str) -> int | None:
        """The training process on a machine; None while none runs."""
        wanted = b"trainer.train"
        found = [pid for pid in carrying(MACHINE, instance_id) if wanted in _argv(pid)]
        return min(found, default=None)

    def shoot(self, pid: int, what: str) -> None:
        os.kill(pid, signal.SIGKILL)
        wait_for(f"{what} to be dead", lambda: not alive(pid), UP_TIMEOUT_S, every_s=0.01)
        self.note(f"{what} was killed")


def _argv(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
