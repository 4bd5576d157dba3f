"""The box burns down: its backup is restored on a fresh one, and the jobs do not notice."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from spotd.api_routes import routes
from spotd.cli.app import run as spotctl
from spotd.daemon.command import main as spotd
from spotd.demo.box import Box, wait_for
from tests.fixtures.forked import ForkedBox
from tests.fixtures.pair import machines
from tests.fixtures.processes import alive
from tests.fixtures.waiting import LIMIT_S

PROMISE_S = 300.0  # from a fresh box and a backup to a daemon that keeps the jobs
# A machine that went while nobody listened is missed by its silence.
TIMING = "survey_every_s = 1.0\nsuspect_after_s = 8\nlost_after_s = 12\n"

pytestmark = pytest.mark.xdist_group("daemon")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="sp-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def cloud(folder: Path) -> Iterator[Box]:
    with Box(folder / "cloud") as box:
        box.start_cloud()
        yield box


def make_box(folder: Path, cloud: Box) -> Box:
    """A control box; packages and logs are kept outside of it, as a bucket would."""
    store = f'[deployment]\nstore = "file://{folder.parent}/store"\n'
    box = ForkedBox(folder, settings=f"{store}[timing]\n{TIMING}")
    box.cloud_url, box.token_file = cloud.cloud_url, cloud.token_file
    return box


def script(folder: Path, name: str) -> str:
    """A job that runs until it is told to finish; it leaves its process id."""
    return f"""\
name: {name}
resources:
  accelerators: H100:8
run: |
  echo $$ >> {folder}/{name}.pid
  while [ ! -e {folder}/{name}.finish ]; do sleep 0.05; done
spotd:
  checkpoint: {{engine: none}}
"""


def submit(box: Box, folder: Path, name: str) -> tuple[str, int]:
    """The job's id and its program's process id, once it runs."""
    job_id = box.submit(script(folder, name), name)
    box.wait_phase(job_id, {"running"}, LIMIT_S)
    wait_for("the program", (folder / f"{name}.pid").exists, LIMIT_S)
    [pid] = (folder / f"{name}.pid").read_text().split()
    return job_id, int(pid)


def living(cloud: Box, job_id: str) -> list[dict[str, Any]]:
    return [row for row in machines(cloud, job_id) if not row["ended_at_us"]]


def heard(box: Box, job_id: str, since: datetime) -> bool:
    """Whether the box has heard the job's machine itself: that one runs, a backup says too."""
    times = [node["heard_at"] for node in box.job(job_id)["nodes"] if node["heard_at"]]
    return any(datetime.fromisoformat(at) > since for at in times)


def test_the_backup_of_a_box_that_burned_down_goes_on_with_its_jobs(
    folder: Path, cloud: Box, capsys: pytest.CaptureFixture[str]
) -> None:
    with make_box(folder / "a", cloud) as burned:
        burned.start_daemon()
        kept, kept_pid = submit(burned, folder, "kept")
        ended, _ = submit(burned, folder, "ended")
        backup = folder / "spotd.backup"
        assert spotctl(["--socket", str(burned.socket_path), "db", "backup", str(backup)]) == 0
        key = shutil.copy2(burned.folder / "state" / "spotd-key", folder / "key")

        # Life goes on: one job ends, and another one comes, of which the backup knows nothing.
        (folder / "ended.finish").touch()
        burned.wait_phase(ended, {"succeeded"}, LIMIT_S)
        wait_for("its machine's end", lambda: not living(cloud, ended), LIMIT_S)
        unknown, unknown_pid = submit(burned, folder, "unknown")
        burned.kill_daemon()
        shutil.rmtree(burned.folder / "state")  # checkpoints are kept elsewhere, as in a bucket

    began_s, began_at = time.monotonic(), datetime.now(UTC)
    fresh = make_box(folder / "b", cloud)
    fresh.write_config()
    assert spotd(["db", "restore", str(backup), "-c", str(fresh.config_path)]) == 0
    assert "in quarantine: this database was restored from" in capsys.readouterr().out
    shutil.copy2(key, fresh.folder / "state" / "spotd-key")
    with fresh:
        fresh.start_daemon()

        def held() -> list[dict[str, Any]]:
            items = fresh.client.call(routes.LIST_ORPHANS())["items"]
            return [item for item in items if item["job"] == unknown]

        wait_for("what the backup does not know to be told", held, LIMIT_S)
        wait_for("the machine to be heard", lambda: heard(fresh, kept, began_at), LIMIT_S)
        assert fresh.job(kept)["phase"] == "running"
        fresh.wait_phase(ended, {"succeeded"}, LIMIT_S)
        took_s = time.monotonic() - began_s
        print(f"from a fresh box to one that keeps its jobs: {took_s:.1f} s")
        assert took_s < PROMISE_S
        assert alive(kept_pid), "a program that trains was not touched"
        assert alive(unknown_pid), "nor one that the backup does not know"
        assert len(living(cloud, unknown)) == 1

        (folder / "kept.finish").touch()
        fresh.wait_phase(kept, {"succeeded"}, LIMIT_S)
        job = fresh.job(kept)
        assert (job["generation"], job["failures"]) == (1, 0)
        wait_for("its machine's end", lambda: not living(cloud, kept), LIMIT_S)
        for job_id in (kept, unknown):
            assert len(machines(cloud, job_id)) == 1, "launched twice"
        # Its machine is missed before HEAD is read: another may be asked for, and is given back.
        wait_for("no machine of what had ended", lambda: not living(cloud, ended), LIMIT_S)
        tokens = [row["token"] for row in cloud.meter()]
        assert len({*tokens}) == len(tokens)
        assert alive(unknown_pid)
        [alert] = [
            e for e in fresh.client.call(routes.READ_EVENTS())["items"] if e["kind"] == "quarantine"
        ]
        assert alert["severity"] == "error"
        assert fresh.client.call(routes.SHOW_QUARANTINE())["active"]
        assert fresh.client.call(routes.RELEASE_QUARANTINE())["reason"]
        assert not fresh.client.call(routes.SHOW_QUARANTINE())["active"]
        assert "Traceback" not in fresh.tail("daemon", 1000)
