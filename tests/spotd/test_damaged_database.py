"""A daemon does not begin on a damaged database, says what to do, and that is what helps."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotd.api_routes import routes
from spotd.demo.box import Box
from tests.fixtures.forked import ForkedBox
from tests.fixtures.waiting import LIMIT_S
from tests.spotd.store.test_integrity import damage


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    with (
        tempfile.TemporaryDirectory(prefix="sp-", dir="/tmp") as name,
        ForkedBox(Path(name)) as made,
    ):
        made.start_cloud()
        yield made


def spotd(box: Box, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "spotd", *words, "--config", str(box.config_path)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, env=box.environ(), check=False
    )


@pytest.mark.xdist_group("daemon")
def test_a_damaged_database_is_refused_and_a_backup_takes_its_place(box: Box) -> None:
    box.start_daemon()
    assert box.daemon is not None
    job_id = box.submit("name: kept\nresources: {accelerators: H100:8}\nrun: sleep 600\n", "r1")
    backup = box.folder / "backup"
    assert spotd(box, "db", "backup", str(backup)).returncode == 0
    box.daemon.terminate()
    assert box.daemon.wait(LIMIT_S) == 0
    file = box.folder / "state" / "spotd.db"
    damage(file, 0.5)
    before = file.read_bytes()

    refused = spotd(box, "run")
    assert refused.returncode != 0
    assert f"the database {file} is damaged" in refused.stderr
    assert "spotd db restore FILE" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert file.read_bytes() == before, "it is left as it was found"

    for path in file.parent.glob("spotd.db*"):
        path.rename(box.folder / path.name)
    assert spotd(box, "db", "restore", str(backup)).returncode == 0
    box.start_daemon()
    assert box.job(job_id)["name"] == "kept"
    box.client.call(routes.CANCEL_JOB(job=job_id))
    box.wait_phase(job_id, {"cancelled"}, LIMIT_S)
