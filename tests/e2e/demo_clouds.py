"""One job over three clouds: `make demo-clouds`, or

    python -m tests.e2e.demo_clouds --out demo-clouds

A real daemon with the real SDKs rents machines from stand-ins of AWS, Google Cloud and Azure. They
are network namespaces that cloud-init sets up by the user data that the API got, with their cloud's
metadata service and OpenSSH. The job starts on AWS, is reclaimed, goes on on Google Cloud, is
reclaimed, and finishes on Azure; then it runs once more, uninterrupted, to compare. Needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console

from spotd.api_routes import routes
from spotd.base.errors import UserError
from spotd.demo.box import BoxError
from spotd.demo.facts import final_losses, orphan_seconds, recoveries, release_delays
from spotd.demo.heads import HeadWatch, zombie_commits
from spotd.demo.screen import Screen, open_screen
from spotd.demo.story import NO_PROGRESS_TIMEOUT_S, RECOVERY_TIMEOUT_S, DemoRun
from spotd.domain.phase import FINISHED
from tests.clouds import machines
from tests.clouds.fleet import now_us
from tests.e2e.cloud_report import Evidence, table
from tests.e2e.clouds import H100, CloudBox, Clouds, running_box, running_clouds
from tests.e2e.rig import SEED, SIZE, STEPS, Reference, open_records
from tests.fixtures import netns

REST_MS = 500  # in each step until it is on the last cloud: it is not to be over before that
LAST_REST_MS = 30
TRAIN_S = 3.0  # on a machine before that is reclaimed
RECLAIMED = ("aws", "gcp")
EXAMPLE = "example: sudo make demo-clouds\n         python -m tests.e2e.demo_clouds --steps 400"


def job_file(name: str, steps: int, rests_before: int = 0) -> str:
    """The job as a user would write it; the machines have our Python and this checkout. Before that
    generation it rests long in each step; its figures are those of rig.py all the same."""
    train = f"{shlex.quote(sys.executable)} -m trainer.train --steps {steps} {SIZE}"
    return f"""\
name: {name}
resources:
  accelerators: H100:8
  use_spot: true
envs:
  PYTHONPATH: {json.dumps(str(netns.CHECKOUT))}
run: |
  rest=$((SPOTD_GENERATION < {rests_before} ? {REST_MS} : {LAST_REST_MS}))
  {train} --step-time-ms $rest --threads 1 --seed {SEED}
spotd:
  checkpoint: {{engine: spotd, every: 4s}}
  progress_every: 1s
"""


class CloudStory(DemoRun):
    """Runs the two jobs in a started box and tells `screen` what happens."""

    box: CloudBox
    machines = len(RECLAIMED) + 1  # that it is to have

    def run_preempted(self) -> str:
        text = job_file("demo-clouds", self.steps, rests_before=self.machines)
        job_id = self.box.submit(text, "demo-clouds")
        with HeadWatch(self.box.checkpoints_url, job_id, self.box.store_options) as watch:
            self.head_versions = watch.versions
            for cloud in RECLAIMED:
                node = self._await_training_on(job_id, cloud)
                self._pause(job_id, TRAIN_S)
                self.screen.add_event("fault", f"{cloud} takes its machine in {node['zone']} back")
                self.box.preempt(str(node["instance_id"]))
            self._finish(job_id)
        return job_id

    def _await_training_on(self, job_id: str, cloud: str) -> dict[str, Any]:
        """Its machine there, as the first that trains since the one before was taken back."""

        def ask() -> dict[str, Any] | None:
            job = self._poll(job_id)
            if job["phase"] in FINISHED:
                raise BoxError(f"the job ended too early: {job['outcome_text']}")
            running = [n for n in job["nodes"] if n["state"] == "running"]
            return next((n for n in running if n["provider"] == cloud), None)

        return self._wait_until(ask, f"the job to train on {cloud}", RECOVERY_TIMEOUT_S) or {}

    def _finish(self, job_id: str) -> None:
        """Until the clouds have ended every machine: the daemon takes a while longer to believe
        that one is gone, for lists may be a minute old."""

        def ask() -> bool:
            job = self._poll(job_id)
            ended = all(row["ended_at_us"] for row in self.box.meter())
            return job["phase"] in FINISHED and ended

        self._wait_until(ask, f"{job_id} to finish", NO_PROGRESS_TIMEOUT_S)
        job = self.box.job(job_id)
        if job["phase"] != "succeeded":
            raise BoxError(f"{job['name']} {job['phase']}: {job['outcome_text']}")

    def run_reference(self) -> str:
        self.screen.add_event("demo", "now the same job once more, uninterrupted, to compare")
        job_id = self.box.submit(job_file("uninterrupted", self.steps), "uninterrupted")
        self._finish(job_id)
        return job_id

    def reference(self) -> Reference:
        """What that one came to."""
        job_id = self.run_reference()
        records = open_records(self.box)
        try:
            return Reference(
                self.box.checkpoints_url, job_id, final_losses(records.progress.rows(job_id))
            )
        finally:
            records.close()


def set_stock(clouds: Clouds, aws: Sequence[str]) -> None:
    """AWS, the cheapest, has one machine in each of these zones, Google Cloud, which is next, one
    in all; Azure has enough."""
    for zone in ("us-west-2a", "us-west-2b"):
        clouds.aws.ec2.market.stock[H100["aws"], zone] = int(zone in aws)
    for zone in ("us-central1-a", "us-central1-b"):
        clouds.gcp.gce.market.stock[H100["gcp"], zone] = int(zone == "us-central1-a")


def play(
    folder: Path,
    screen: Screen,
    steps: int = STEPS,
    unwell: Mapping[str, str] = MappingProxyType({}),
    reference: Reference | None = None,
) -> Evidence:
    """The whole demo in a folder of its own; with programs of an `unwell` machine (path -> script),
    the first that AWS sells has those, and there is one more. With a `reference`, the job does not
    run once more. Raises BoxError and UserError."""
    python = Path(sys.executable)
    began_s = time.monotonic()
    with running_clouds(folder, python) as clouds:
        set_stock(clouds, ("us-west-2a", "us-west-2b") if unwell else ("us-west-2a",))
        clouds.grounds["aws"].machines.next_programs = dict(unwell)
        with running_box(folder, clouds, python) as box:
            story = CloudStory(box, screen, steps)
            story.machines += bool(unwell)
            job_id = story.run_preempted()
            wall_s = time.monotonic() - began_s
            return _gather(box, clouds, story, job_id, reference or story.reference(), wall_s)


def _gather(
    box: CloudBox,
    clouds: Clouds,
    story: DemoRun,
    job_id: str,
    reference: Reference,
    wall_s: float,
) -> Evidence:
    meter, at_us = box.meter(), now_us()
    records = open_records(box)
    try:
        nodes, progress = records.nodes.of_job(job_id), records.progress.rows(job_id)
        everybody = [*nodes, *records.nodes.of_job(reference.job_id)]
        return Evidence(
            nodes=nodes,
            progress=progress,
            reference=reference.losses,
            recoveries=recoveries(nodes, progress, box.takings(), meter),
            weights_equal=_compare(box, job_id, reference),
            zombie_commits=zombie_commits(story.head_versions),
            orphan_s=orphan_seconds(everybody, meter, at_us),
            giving_back_s=release_delays(everybody, meter, at_us),
            left=clouds.left(),
            jumps=clouds.jumps(),
            cost=box.client.call(routes.JOB_COST(job=job_id)),
            wall_s=wall_s,
        )
    finally:
        records.close()


def _compare(box: CloudBox, job_id: str, reference: Reference) -> bool:
    done = box.compare(job_id, reference.store, reference.job_id)
    (box.folder / "compare.log").write_text(done.stdout + done.stderr)
    return done.returncode == 0


def main(argv: Sequence[str]) -> int:
    """0 when everything it is to prove was proven; 2 where it cannot run at all."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.e2e.demo_clouds",
        description=__doc__,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("demo-clouds"), help="of report.json")
    parser.add_argument("--steps", type=int, default=STEPS, help="length of the job")
    given = parser.parse_args(argv)
    console = Console()
    try:
        if os.geteuid() != 0:
            raise RuntimeError(
                "its machines are network namespaces, and making those takes root\n"
                "try: sudo make demo-clouds"
            )
        netns.require()
        machines.require()
    except RuntimeError as error:
        print(f"make demo-clouds cannot run: {error}", file=sys.stderr)
        return 2
    out = given.out.absolute()
    box = out / "box"
    shutil.rmtree(box, ignore_errors=True)
    try:
        with open_screen(console, "spotd demo (stand-ins of AWS, Google Cloud, Azure)") as screen:
            evidence = play(box, screen, given.steps)
    except (BoxError, UserError) as error:
        console.print(f"the demo failed: {error}", highlight=False, markup=False)
        console.print(f"try: the logs in {box}", highlight=False, markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted; everything was stopped")
        return 130
    evidence.write(out)
    console.print(table(evidence))
    for good, text in evidence.verdicts():
        console.print(f"{'✔' if good else '✘'} {text}", highlight=False, soft_wrap=True)
    took = (
        f"{evidence.wall_s:.0f} s for the reclaimed job, and additional time for the "
        "uninterrupted one"
    )
    console.print(took, highlight=False)
    console.print(f"report: {given.out / 'report.json'}", highlight=False, soft_wrap=True)
    return 0 if evidence.proven() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
