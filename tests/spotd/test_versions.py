"""spotd is upgraded, taken back and upgraded again under jobs that train: the whole program of the
version before, its schema and its agents, against ours.

`make soak` does it with 20 jobs, by SPOTD_UPGRADE_JOBS; here are as many as have a fate of their
own: one is cancelled, one is moved by us, one stays, and those that come later.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from providers.stores import open_store as open_objects
from spotd import wire
from spotd.act.bundle import build_bundle
from spotd.act.ssh import Address, connect
from spotd.api_routes import routes
from spotd.daemon.command import main as spotd
from spotd.demo.box import Box, BoxError, wait_for
from spotd.demo.facts import final_losses
from spotd.store import schema
from spotd.store.journal import JournalBatch
from spotd.store.sql_store import open_store
from spotd.wire import JournalEntry
from tests.e2e.rig import open_records
from tests.fixtures import tiny
from tests.fixtures.older import SCHEMA, VERSION, unpack
from tests.fixtures.pair import machines
from tests.fixtures.processes import alive, carrying, command_line
from tests.fixtures.waiting import LIMIT_S
from tests.spotd.store.build import NOW, new_node, offer, placed, view
from trainer.fence import read_head
from trainer.saver.reader import read_manifest

JOBS = int(os.environ.get("SPOTD_UPGRADE_JOBS", "4"))
OURS = Path(__file__).parents[2]

pytestmark = pytest.mark.xdist_group("daemon")


def program_of(code: Path) -> str:
    """The module that is the daemon of that version."""
    return (
        "spotd" if (code / "spotd" / "__main__.py").exists() else "spotd.command"
    )  # until version 1


class Versions(Box):
    """A box on which either version of spotd can be installed."""

    code = OURS

    @property
    def program(self) -> str:  # type: ignore[override]
        return program_of(self.code)

    def install(self, code: Path) -> None:
        """Start the daemon of that version."""
        self.code = code
        self.start_daemon()

    def environ(self) -> dict[str, str]:
        return super().environ() | {"PYTHONPATH": str(self.code)}

    def end(self) -> None:
        """A clean stop, as before another version is installed."""
        assert self.daemon is not None
        self.daemon.terminate()
        assert self.daemon.wait(LIMIT_S) == 0, self.tail("daemon")

    def refusal(self, code: Path) -> str:
        """What that version says instead of starting."""
        command = [str(self.python), "-m", program_of(code), "run", "-c", str(self.config_path)]
        environ = super().environ() | {"PYTHONPATH": str(code)}
        done = subprocess.run(
            command, env=environ, cwd=self.folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 1, done.stderr
        return done.stderr

    def db(self, *words: str) -> None:
        """`spotd db ...` of our version."""
        assert spotd(["db", *words, "-c", str(self.config_path)]) == 0


@pytest.fixture
def box() -> Iterator[Versions]:
    settings = "[timing]\nsurvey_every_s = 1.0\n"
    with (
        tempfile.TemporaryDirectory(prefix="sp-", dir="/tmp") as name,
        Versions(Path(name), settings=settings) as made,
    ):
        made.start_cloud()
        yield made


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code of the version before."""
    return unpack(tmp_path_factory.mktemp("older"))


def submit(box: Box, number: int) -> str:
    """A job that trains until it is told to finish."""
    program = f"PYTHONPATH={OURS} exec {sys.executable} -m tests.fixtures.tiny"
    text = f"""\
name: job-{number}
resources:
  cpus: 1+
  use_spot: true
run: |
  echo $$ >> {box.folder}/{number}.pid
  {program} {number} {box.folder}/finish
spotd:
  checkpoint: {{engine: spotd, every: 2s}}
  progress_every: 1s
"""
    return box.submit(text, f"r{number}")


def started(box: Box, number: int, times: int = 1) -> list[int]:
    """The process ids of a job's programs, one a generation, once there are so many."""
    path = box.folder / f"{number}.pid"

    def pids() -> list[int]:
        found = [int(pid) for pid in path.read_text().split()] if path.exists() else []
        return found if len(found) >= times else []

    found = wait_for(f"program {times} of job {number}", pids, LIMIT_S)
    assert len(found) == times
    return found


def heard(box: Box, jobs: Sequence[str]) -> None:
    """Every machine is heard again, from now on, and its losses arrive."""
    since = datetime.now(UTC)
    before = {job_id: running(box, job_id).get("step", 0) for job_id in jobs}

    def is_heard(job_id: str) -> bool:
        node = running(box, job_id)
        at = node.get("heard_at")
        fresh = at and datetime.fromisoformat(at) > since
        return bool(fresh and node["step"] > before[job_id])

    wait_for("every machine to be heard", lambda: all(map(is_heard, jobs)), LIMIT_S)


def running(box: Box, job_id: str) -> dict[str, Any]:
    """The node on which the job runs; {} when there is none."""
    nodes = [node for node in box.job(job_id)["nodes"] if node["state"] == "running"]
    assert len(nodes) <= 1
    return nodes[0] if nodes else {}


def agents(box: Box, digest: str) -> int:
    """How many of this box's machines run the agent of that bundle."""
    bundle = re.compile(re.escape(str(box.folder)) + rf"/\S+/bundles/{digest}\.pyz(?=\0keep\0)")
    words = [words_of(pid) for pid in carrying("SPOTD_LOCAL_INSTANCE")]
    return len({found[0] for line in words if (found := bundle.search(line))})


def words_of(pid: int) -> str:
    """Its command line; "" when it is gone."""
    return command_line(pid).decode()


def bundle_of(code: Path) -> str:
    """The digest of the agent that this version ships, by its own words."""
    words = "from spotd.act.bundle import build_bundle; print(build_bundle().digest)"
    environ = os.environ | {"PYTHONPATH": str(code)}
    done = subprocess.run(
        [sys.executable, "-c", words], env=environ, cwd="/", capture_output=True, check=True
    )
    return done.stdout.decode().strip()


def take_away(box: Box, job_id: str, number: int) -> None:
    """Its machine gets a notice: the job moves to another one."""
    instance = running(box, job_id)["instance_id"]
    box.preempt(instance, kind="preempt", mode="notice", notice_s=30)
    started(box, number, 2)

    def moved() -> bool:
        node = running(box, job_id)
        return node.get("generation") == 2 and node["step"] > 0

    wait_for("the job to train elsewhere", moved, LIMIT_S)


def let_in(box: Box, job_id: str) -> str:
    """What a user sees who logs in to the job's machine."""
    access = box.client.call(routes.SSH_ACCESS(job=job_id))
    address = Address(access["host"], access["port"], access["user"], access["host_public_key"])
    connection = connect(address, access["private_key"], 20.0)
    try:
        return connection.run("echo inside", [], 20.0).stdout.decode().strip()
    finally:
        connection.close()


def trained(box: Box, job_id: str, number: int) -> None:
    """Its final state and the loss of every step are those of a run that nobody disturbed."""
    objects = open_objects(box.checkpoints_url, {})
    found = read_head(objects, job_id)
    assert found is not None
    assert found[0].final
    assert found[0].current is not None
    state = tiny.state_of(read_manifest(objects, found[0].current))
    expected, losses = tiny.uninterrupted(number, state.step)
    assert state == expected
    records = open_records(box)
    try:
        assert final_losses(records.progress.rows(job_id)) == losses
    finally:
        records.close()


@pytest.mark.req("UX-04")
def test_upgraded_and_taken_back_under_jobs_that_train(box: Versions, older: Path) -> None:
    """No program is started again but where a machine is taken away, no step is lost, and no
    machine is asked for twice."""
    assert bundle_of(older) != build_bundle().digest
    box.install(older)
    jobs = {number: submit(box, number) for number in range(JOBS)}
    pids = {number: started(box, number) for number in jobs}
    heard(box, list(jobs.values()))
    assert agents(box, bundle_of(older)) == JOBS
    backup = box.folder / "before.backup"
    box.db("backup", str(backup))
    box.end()

    # The upgrade. What the version before started goes on, is told what to do, and lets people in.
    box.db("upgrade")
    box.install(OURS)
    heard(box, list(jobs.values()))
    assert agents(box, bundle_of(older)) == JOBS, "they are what they were"
    assert let_in(box, jobs[1]) == "inside"
    cancelled = jobs.pop(0)
    box.client.call(routes.CANCEL_JOB(job=cancelled))
    box.wait_phase(cancelled, {"cancelled"}, LIMIT_S)
    wait_for("its program's end", lambda: not alive(pids[0][0]), LIMIT_S)
    take_away(box, jobs[1], 1)
    jobs[JOBS] = submit(box, JOBS)
    pids[JOBS] = started(box, JOBS)
    jobs[JOBS + 1] = submit(box, JOBS + 1)
    started(box, JOBS + 1)
    heard(box, list(jobs.values()))
    assert agents(box, build_bundle().digest) == 3
    box.end()

    # The way back: the version before has agents of the one after it as well.
    assert f"(schema {SCHEMA}) does not know" in box.refusal(older)
    box.db("downgrade", SCHEMA)
    box.install(older)
    heard(box, list(jobs.values()))
    take_away(box, jobs[JOBS + 1], JOBS + 1)
    box.end()

    box.db("upgrade")
    box.install(OURS)
    heard(box, list(jobs.values()))
    stayed = [number for number in jobs if number not in (1, JOBS + 1)]
    assert all(alive(pids[number][0]) for number in stayed)
    (box.folder / "finish").touch()
    for number, job_id in jobs.items():
        box.wait_phase(job_id, {"succeeded"}, LIMIT_S)
        times = 1 if number in stayed else 2
        started(box, number, times)
        job = box.job(job_id)
        assert (job["generation"], job["failures"]) == (times, 0)
        trained(box, job_id, number)
        assert len(machines(box, job_id)) == times
    tokens = [row["token"] for row in box.meter()]
    assert len({*tokens}) == len(tokens)
    assert "Traceback" not in box.tail("daemon", 5000)
    kinds = [event["kind"] for job_id in jobs.values() for event in box.events(job_id)]
    assert "wire" not in kinds, "a version next to ours is no news"


def test_what_is_older_is_older() -> None:
    """Of the wire by one step, of the schema by some."""
    assert VERSION == 1
    assert SCHEMA in schema.REVISIONS[:-1]


@pytest.mark.parametrize(("version", "starts"), [(0, True), (1, True), (9, False)])
def test_with_agents_that_it_does_not_understand_it_does_not_start(
    box: Versions, version: int, starts: bool
) -> None:
    """Nothing that they say is taken for something else, and their training goes on."""
    (box.folder / "state").mkdir(mode=0o700)
    url = f"sqlite:///{box.folder / 'state' / 'spotd.db'}"
    store = open_store(url, now=lambda: NOW, notify=int, deployment_factory=lambda: "d0")
    placed(store, "j1", new_node(offer=offer("elsewhere-1a")))
    store.nodes.record_launched("j1-g1-0", "i-1", NOW)
    if version:
        hello = JournalEntry(1, NOW, 1, wire.HELLO, wire=version)
        store.journal.record([JournalBatch("j1-g1-0", (hello,), NOW)])
    before = view(store)
    store.close()
    if starts:
        box.start_daemon()
        return
    with pytest.raises(BoxError, match=r"another wire .*: j1-g1-0 \(version 9\)"):
        box.start_daemon()
    store = open_store(url, now=lambda: NOW, notify=int, deployment_factory=str)
    assert view(store) == before
    store.close()
