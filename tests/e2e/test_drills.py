"""Drills of whole processes on the local cloud: what `spotctl init job` writes passes as it is,
also when the daemon is killed meanwhile, and a kill loses no more than the cadence has."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from spotd.api_routes import routes
from spotd.base.errors import ExitCode
from spotd.demo.box import Box, running_box, wait_for
from tests.e2e.rig import SCENARIO, UP_TIMEOUT_S
from tests.fixtures.waiting import LIMIT_S

WITHIN = "60s"


def spotctl(box: Box, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    program = [str(Path(sys.executable).parent / "spotctl"), "--socket", str(box.socket_path)]
    return subprocess.run(
        [*program, *words], capture_output=True, text=True, check=False, cwd=cwd, timeout=LIMIT_S
    )


def drill(box: Box, kind: str) -> dict[str, Any]:
    words = ("drill", "run", "my-training", "--kind", kind, "--within", WITHIN, "--yes")
    done = spotctl(box, *words, "-o", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.e2e
@pytest.mark.xdist_group("kills of others")
@pytest.mark.req("DRL-01", "DRL-04")
def test_what_init_writes_passes_the_drills_as_it_is(folder: Path, tmp_path: Path) -> None:
    with running_box(folder, SCENARIO, python=Path(sys.executable)) as box:
        assert spotctl(box, "init", "job", cwd=tmp_path).returncode == 0
        assert spotctl(box, "run", "job.yaml", "-d", cwd=tmp_path).returncode == 0
        job_id = box.client.call(routes.SHOW_JOB(job="my-training"))["id"]
        early = spotctl(box, "drill", "run", "my-training", "--yes")
        assert early.returncode == ExitCode.REFUSED, "nothing is saved yet"
        wait_for("a checkpoint", lambda: box.job(job_id)["last_checkpoint"], UP_TIMEOUT_S)

        # The daemon dies in the midst of it: the drill is one, and strikes once.
        def kill_daemon() -> None:
            wait_for(
                "a drill", lambda: box.client.call(routes.LIST_DRILLS())["items"], UP_TIMEOUT_S
            )
            box.kill_daemon()
            box.start_daemon()

        killer = threading.Thread(target=kill_daemon)
        killer.start()
        found = drill(box, "sigterm")
        killer.join()
        assert (found["state"], found["lost_steps"]) == ("passed", 0), found
        assert found["resumed_step"] == found["reached_step"]
        assert box.job(job_id)["generation"] == 2

        found = drill(box, "kill")
        assert found["state"] == "passed", found
        job = box.job(job_id)
        assert (job["generation"], job["failures"], job["recoveries"]) == (3, 0, 0)
        assert [n["leave_reason"] for n in job["nodes"] if n["state"] == "gone"] == ["drill"] * 2

        stats = box.client.call(routes.STATS(), query={"since_s": 3600})
        assert [row["interruptions"]["count"] for row in stats["items"]] == [0]
        assert "passed" in spotctl(box, "show", "my-training").stdout
        assert spotctl(box, "drill", "ls", "-o", "name").stdout.count("\n") == 2
