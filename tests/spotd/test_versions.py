"""A daemon is upgraded, taken back and upgraded again while jobs run on agents of both versions.

`SPOTD_UPGRADE_JOBS=20 pytest tests/spotd/test_versions.py` does it with more jobs.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from spotd.demo.box import Box, wait_for
from spotd.errors import UserError
from tests.rigs.older import OLD_DAEMON, VERSION, bundle
from tests.rigs.pair import machines
from tests.rigs.processes import alive, carrying

JOBS = int(os.environ.get("SPOTD_UPGRADE_JOBS", "3"))
LIMIT_S = 90.0 + 5.0 * JOBS
ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.xdist_group("daemon")


class Versions(Box):
    """A box whose daemon may be of the version before."""

    def start_older(self) -> None:
        """As `start_daemon`, of the version before."""
        self.write_config()
        self.daemon = self._spawn("daemon", ["-c", OLD_DAEMON, str(self.config_path)])
        wait_for("the older daemon", self.answers, LIMIT_S)

    def answers(self) -> bool:
        try:
            return bool(self.client.get("/v1/health"))
        except UserError:
            return False

    def environ(self) -> dict[str, str]:
        return super().environ() | {"PYTHONPATH": str(ROOT)}

    def end(self) -> None:
        """A clean stop, as before another version is installed."""
        assert self.daemon is not None
        self.daemon.terminate()
        assert self.daemon.wait(LIMIT_S) == 0, self.tail("daemon")


@pytest.fixture
def box() -> Iterator[Versions]:
    settings = "[timing]\nsurvey_every_s = 1.0\n"
    with (
        tempfile.TemporaryDirectory(prefix="sp-", dir="/tmp") as name,
        Versions(Path(name), settings=settings) as made,
    ):
        made.start_cloud()
        yield made


def script(folder: Path, number: int) -> str:
    """A job that counts its steps aloud until it is told to finish."""
    return f"""\
name: job-{number}
resources:
  cpus: 1+
  use_spot: true
run: |
  echo $$ >> {folder}/{number}.pid
  step=0
  while [ ! -e {folder}/finish ]; do step=$((step+1)); echo "step $step"; sleep 0.1; done
  echo "steps $step"
spotd:
  checkpoint: {{engine: none}}
"""


def submit(box: Box, number: int) -> str:
    return box.submit(script(box.folder, number), f"r{number}")


def started(box: Box, numbers: Sequence[int]) -> list[int]:
    """The process ids of their programs, one of each."""
    found = []
    for number in numbers:
        path = box.folder / f"{number}.pid"
        wait_for(f"program {number}", path.exists, LIMIT_S)
        wait_for(f"program {number}", path.read_text, LIMIT_S)
        [pid] = path.read_text().split()
        found.append(int(pid))
    return found


def heard(box: Box, jobs: Sequence[str]) -> None:
    """Every machine is heard again, from now on."""
    since = datetime.now(UTC)

    def all_heard() -> bool:
        nodes = [node for job_id in jobs for node in box.job(job_id)["nodes"]]
        times = [node["heard_at"] for node in nodes if node["state"] == "running"]
        return len(times) == len(jobs) and all(
            at and datetime.fromisoformat(at) > since for at in times
        )

    wait_for("every machine to be heard", all_heard, LIMIT_S)


def agents(box: Box, digest: str) -> list[int]:
    """Processes of this box's machines that run the agent of that bundle."""
    wanted = (str(box.folder), f"{digest}.pyz", "keep")
    return [
        pid
        for pid in carrying("SPOTD_LOCAL_INSTANCE")
        if all(word in words_of(pid) for word in wanted)
    ]


def words_of(pid: int) -> str:
    """Its command line; "" when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def output(box: Box, job_id: str) -> str:
    """All that the job printed."""
    text, cursor, more = "", dict[str, int](), True
    while more:
        reply = box.client.post(f"/v1/jobs/{job_id}/logs", {"cursor": cursor})
        text += "".join(str(chunk["text"]) for chunk in reply["chunks"])
        cursor, more = reply["cursor"], reply["more"]
    return text


def last_line(box: Box, job_id: str) -> str:
    """How many steps its program says that it made; "" while that is on its way."""
    found = re.findall(r"^steps (\d+)$", output(box, job_id), re.MULTILINE)
    return str(found[0]) if found else ""


@pytest.mark.req("UX-04")
@pytest.mark.timeout(600)
def test_upgraded_and_taken_back_under_jobs_that_run(box: Versions) -> None:
    """No program is started again, and no line of what it said is missing or there twice."""
    assert VERSION == 1
    box.start_older()
    old = [submit(box, number) for number in range(JOBS)]
    pids = started(box, range(JOBS))
    for job_id in old:
        box.wait_phase(job_id, {"running"}, LIMIT_S)
    assert len(agents(box, bundle().digest)) == JOBS
    box.end()

    box.start_daemon()  # the upgrade
    heard(box, old)
    assert len(agents(box, bundle().digest)) == JOBS, "they are what they were"
    young = submit(box, JOBS)
    pids += started(box, [JOBS])
    box.wait_phase(young, {"running"}, LIMIT_S)
    # Commands of this version reach an agent of the one before.
    box.client.post(f"/v1/jobs/{old[0]}/cancel")
    box.wait_phase(old[0], {"cancelled"}, LIMIT_S)
    wait_for("its program's end", lambda: not alive(pids[0]), LIMIT_S)
    box.end()

    box.start_older()  # and back: it has an agent of the version after it as well
    jobs = [*old[1:], young]
    heard(box, jobs)
    box.end()

    box.start_daemon()
    heard(box, jobs)
    assert all(alive(pid) for pid in pids[1:])
    (box.folder / "finish").touch()
    for job_id in jobs:
        box.wait_phase(job_id, {"succeeded"}, LIMIT_S)
        job = box.job(job_id)
        assert (job["generation"], job["failures"]) == (1, 0)
        assert len(machines(box, job_id)) == 1
        total = wait_for("its last line", partial(last_line, box, job_id), LIMIT_S)
        said = output(box, job_id)
        steps = [int(step) for step in re.findall(r"^step (\d+)$", said, re.MULTILINE)]
        assert steps == list(range(1, int(total) + 1))
    assert "Traceback" not in box.tail("daemon", 5000)
    kinds = [event["kind"] for job_id in jobs for event in box.events(job_id)]
    assert "wire" not in kinds, "a version next to ours is no news"
