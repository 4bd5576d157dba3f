"""The real thing for a while: `python -m tests.e2e.chaos --minutes 30 --out FILE [--seed N]`.

Machines of network namespaces with OpenSSH and a metadata service, two real daemons on one real
PostgreSQL, and a stream of training jobs. Machines get notices, lose power, freeze, are cut off and
heal; daemons are killed and stopped; the database restarts and loses its connections. In the end
every job is done and equal, bit for bit, to the same job left alone, and the cloud's own meter
shows nothing launched twice and nothing that ran on unwanted beyond the grace. Ends with 1 and the
story when any of that is not so. What was done when, the seed decides; what it hits, time does.
Needs root.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from spotd.api_client.client import Client
from spotd.api_routes import routes
from spotd.base.errors import UserError
from spotd.demo import heads
from spotd.demo.box import BoxError, wait_for
from spotd.domain.job import Job
from spotd.domain.node import Node
from spotd.domain.states import NodeState
from spotd.store.errors import StoreError
from spotd.store.interface import Store
from spotd.store.sql_store import open_store as open_database
from tests.e2e import verdict
from tests.e2e.installed import install
from tests.e2e.reckoning import figures, judge_machines, unable
from tests.e2e.rig import SCENARIO, Reference, job_file, make_reference
from tests.e2e.strikes import Actor, DaemonActor, DatabaseActor, MachineActor, Record
from tests.fixtures import netns, postgres
from tests.fixtures.pair import Pair

STEPS = 400  # sixteen seconds at least
SEEDS = (3, 4)  # of the jobs: two that are not the same
MORE = "  boot_timeout: 60s\n"
TIMING = """\
lease_s = 8
offers_every_s = 10
survey_every_s = 4
suspect_after_s = 8
lost_after_s = 20
reterminate_s = 10
"""
POLL_S = 0.5
REPLY_S = 10.0  # of a daemon that may be stopped
QUIET_LIMIT_S = 300.0  # for the last jobs to end when nobody strikes any more
HEAD_EVERY_S = 0.1
PROGRESS_S = 30.0


@dataclass
class Course:
    """One job on its way; `number` tells its request from others."""

    number: int
    job_id: str
    reference: Reference
    watch: heads.HeadWatch
    began_s: float


class Chaos:
    """The pair, the jobs and the record."""

    def __init__(self, pair: Pair, references: Sequence[Reference], parallel: int) -> None:
        self.pair = pair
        self.references = references
        self.parallel = parallel
        self.record = Record()
        self.open: list[Course] = []
        self.walls: list[float] = []
        self.number = 0
        self.nodes: dict[str, Node] = {}  # of jobs that have ended
        self.records: Store = open_database(
            pair.server.url(pair.database),
            now=lambda: 0,
            notify=lambda: None,
            deployment_factory=str,
        )

    # --- jobs

    def submit(self) -> bool:
        """One more, at whichever daemon answers; False when none does."""
        turn = self.number % len(self.references)
        name = f"job-{self.number}"
        text = job_file(self.pair.cloud.python, STEPS, SEEDS[turn], name=name, more=MORE)
        for twin in self.pair.twins:
            client = Client(twin.socket_path, reply_s=REPLY_S)
            try:
                job = client.call(routes.SUBMIT_JOB(), {"yaml": text, "request_id": name})
            except UserError:
                continue
            watch = heads.HeadWatch(self.pair.cloud.checkpoints_url, str(job["id"]))
            watch.__enter__()
            course = Course(
                self.number, str(job["id"]), self.references[turn], watch, time.monotonic()
            )
            self.open.append(course)
            self.record.note(f"job {self.number} is {course.job_id}")
            self.number += 1
            return True
        return False

    def look(self) -> None:
        """Take from the open ones what has ended, machines and all, and judge it."""
        for course in list(self.open):
            try:
                job = self.records.jobs.find(course.job_id)
                nodes = self.records.nodes.of_job(course.job_id)
            except StoreError:
                return  # the database is away
            ended = job is not None and job.outcome is not None
            if job is not None and ended and all(n.state is NodeState.GONE for n in nodes):
                self.open.remove(course)
                course.watch.__exit__()
                self.close(course, job, nodes)

    def close(self, course: Course, job: Job, nodes: Sequence[Node]) -> None:
        self.nodes |= {node.id: node for node in nodes}
        self.walls.append(time.monotonic() - course.began_s)
        wrong = [] if job.outcome and job.outcome.value == "succeeded" else [job.end.outcome_text]
        if job.backoff.failures:
            wrong.append(f"{job.backoff.failures} crashes were charged to it")
        wrong += verdict.state(self.pair.cloud, course.job_id, course.reference)
        wrong += verdict.head(course.watch.versions, nodes)
        for _ in range(20):  # the database may be away just now
            try:
                wrong += verdict.segments(self.records, course.job_id)
                wrong += verdict.losses(self.records.progress.rows(course.job_id), course.reference)
                break
            except StoreError:
                time.sleep(POLL_S)
        text = f"job {course.number} {job.outcome and job.outcome.value} on {len(nodes)} machines"
        self.record.note(
            f"{text} after {self.walls[-1]:.0f} s: {'; '.join(wrong) or 'as if alone'}"
        )
        self.record.wrong += [f"job {course.number} ({course.job_id}): {what}" for what in wrong]

    # --- the run

    def go(self, actors: Sequence[Actor], seconds: float) -> None:
        """Strike for that long, then let the open jobs end in peace. Raises BoxError."""
        end_s, told_s = time.monotonic() + seconds, time.monotonic()
        for actor in actors:
            actor.start()
        try:
            while time.monotonic() < end_s:
                self.look()
                if len(self.open) < self.parallel:
                    self.submit()
                if time.monotonic() > told_s + PROGRESS_S:
                    told_s = time.monotonic()
                    left_s = end_s - told_s
                    done = len(self.walls)
                    print(f"--- {left_s:.0f} s left, {done} jobs done", flush=True)
                time.sleep(POLL_S)
        finally:
            for actor in actors:
                actor.stopping.set()
            for actor in actors:
                actor.done.wait()
                if isinstance(actor, MachineActor):
                    actor.healed.wait()
        self.record.note("nobody strikes any more")

        def peace() -> bool:
            self.look()
            return not self.open

        try:
            wait_for("the last jobs to end", peace, QUIET_LIMIT_S, POLL_S)
        finally:
            for course in self.open:
                course.watch.__exit__()

    def report(self) -> dict[str, Any]:
        """The figures; what is wrong is in the record from now on."""
        meter, now_us = self.pair.cloud.meter(), time.time_ns() // 1000
        nodes, away = list(self.nodes.values()), unable(self.record.spans)
        wrong = self.record.wrong
        wrong += judge_machines(nodes, meter, away, now_us)
        wrong += [f"box {box} wrote as {who}" for box, who in self.pair.intruders()]
        for twin in self.pair.twins:
            log = (twin.folder / "daemon.log").read_text(errors="replace")
            if "Traceback" in log or '"exception"' in log:
                wrong.append(f"a traceback in the log of daemon {twin.box}")
        epochs = self.pair.server.execute("SELECT sum(epoch - 1) FROM duties", self.pair.database)
        generations = [
            max((n.generation for n in nodes if n.job_id == job), default=0)
            for job in {n.job_id for n in nodes}
        ]
        walls = sorted(self.walls)
        return {
            "jobs": len(walls),
            "job_seconds_median": round(walls[len(walls) // 2], 1) if walls else 0.0,
            "job_seconds_worst": round(walls[-1], 1) if walls else 0.0,
            "generations_worst": max(generations, default=0),
            "duties_taken_over": int(str(epochs[0][0])),
            "faults": dict(sorted(self.record.counts.items())),
            "missed": dict(sorted(self.record.missed.items())),
            **figures(nodes, meter, away, now_us),
        }


def perform(
    folder: Path, python: Path, seconds: float, seed: int, parallel: int
) -> tuple[dict[str, Any], Record]:
    """The whole run: its figures, and its record, in which `wrong` is empty when all is well."""
    heads.POLL_FILE_S = HEAD_EVERY_S
    references = [make_reference(python, folder / f"alone-{n}", STEPS, n) for n in SEEDS]
    with ExitStack() as stack:
        network = stack.enter_context(netns.network())
        server = stack.enter_context(postgres.running())
        (folder / "cloud").mkdir()
        cloud = stack.enter_context(
            netns.RealBox(network, folder / "cloud", SCENARIO, python=python)
        )
        cloud.start_cloud()
        pair = Pair(folder, server, cloud, TIMING)
        for twin in pair.twins:
            stack.callback(twin.stop)
        pair.start()
        for twin in pair.twins:
            assert twin.daemon is not None
            network.keep(twin.daemon.pid)
        chaos = Chaos(pair, references, parallel)
        stack.callback(chaos.records.close)
        record = chaos.record
        actors = [
            *(DaemonActor(twin, network.keep, seed, record) for twin in pair.twins),
            DatabaseActor(pair, seed, record),
            MachineActor(pair, network, seed, record),
        ]
        try:
            chaos.go(actors, seconds)
            report = chaos.report()
        except (BoxError, UserError) as error:
            record.wrong.append(str(error))
            report = chaos.report()
        if record.wrong:
            record.story += explain(chaos)
    return report, record


def explain(chaos: Chaos) -> list[str]:
    """What the daemons have to say."""
    said = []
    for course in chaos.open:
        rows = chaos.records.events.rows(course.job_id)
        said += [f"{course.job_id}: {row.event.kind}: {row.event.text}" for row in rows]
    for twin in chaos.pair.twins:
        said.append(f"--- {twin.box}\n{twin.tail('daemon', 60)}")
    return [*said, f"--- cloud\n{chaos.pair.cloud.tail('cloud', 30)}"]


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when all is as it should be."""
    parser = argparse.ArgumentParser(prog="chaos", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--out", type=Path, required=True, help="file for the report, JSON")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=3, help="at a time")
    options = parser.parse_args(arguments)
    if not 0 < options.minutes <= 24 * 60 or options.jobs < 1:
        parser.error("--minutes must be more than 0 and at most 1440, --jobs at least 1")
    signal.signal(signal.SIGTERM, _end)
    began_s = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="spchaos-", dir="/tmp"))  # sockets lie in it
    try:
        (folder / "installed").mkdir()
        python = install(folder / "installed")
        seconds = options.minutes * 60
        report, record = perform(folder, python, seconds, options.seed, options.jobs)
        if record.wrong:
            kept = options.out.with_suffix(".kept")
            shutil.rmtree(kept, ignore_errors=True)
            kept.mkdir(parents=True)
            for log in [*folder.glob("*/*.log"), *folder.glob("cloud/cloud/logs/*")]:
                shutil.copy(log, kept / f"{log.parent.name}-{log.name}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    machine = f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}"
    whole = {
        "machine": machine,
        "seed": options.seed,
        "minutes": options.minutes,
        "wall_s": round(time.monotonic() - began_s, 1),
        "wrong": record.wrong,
        **report,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({**whole, "story": record.story}, indent=1) + "\n")
    print(json.dumps(whole, indent=1))
    if record.wrong:
        print("\n".join(record.story), "WRONG:", *record.wrong, sep="\n")
    return int(bool(record.wrong))


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
