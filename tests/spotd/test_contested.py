"""A restored copy runs beside the original, as processes at one cloud: it touches nothing while the
original lives, and goes on when that is gone."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from providers.stores.local import LocalStore
from spotd.api_routes import routes
from spotd.daemon.startup import MOVED
from spotd.demo.box import Box, wait_for
from tests.fixtures.forked import ForkedBox
from tests.fixtures.waiting import LIMIT_S

JOB = """\
name: contested
resources:
  accelerators: H100:8
run: while :; do sleep 0.05; done
spotd:
  checkpoint: {engine: none}
"""


def spotd(box: Box, *words: str) -> None:
    command = [sys.executable, "-m", "spotd", *words, "--config", str(box.config_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, env=box.environ(), check=False
    )
    assert done.returncode == 0, done.stderr


def why(box: Box) -> str:
    """Why it stands still, as its doctor says."""
    checks = {check["name"]: check["text"] for check in box.client.call(routes.DOCTOR())["checks"]}
    return str(checks.get("deployment", ""))


def open_machines(box: Box) -> list[dict[str, Any]]:
    return [row for row in box.meter() if not row["ended_at_us"]]


def moves(objects: LocalStore, times: int) -> None:
    """The one that lives keeps its claim so often."""
    seen: set[bytes] = set()

    def moved() -> bool:
        for info in objects.list("claims/"):
            seen.add(objects.get(info.key)[0])
        return len(seen) > times

    wait_for("the claim to move", moved, LIMIT_S)


# Where both find the claim: in the deployment's store, or, where that is a folder of each box, in
# the one of checkpoints (a bucket in a cloud; here a folder that all have mounted).
SHARED = {
    "deployment": '[deployment]\nstore = "{url}"\n',
    "checkpoints": '[stores.all]\nurl = "{url}"\nshared = true\n',
}


class SharingBox(ForkedBox):
    """Its jobs save in `shared`, where that is said."""

    shared = ""

    @property
    def checkpoints_url(self) -> str:
        return self.shared or super().checkpoints_url


@pytest.mark.xdist_group("daemon")
@pytest.mark.parametrize("which", SHARED)
def test_a_copy_beside_the_original_touches_nothing_until_that_is_gone(which: str) -> None:
    with tempfile.TemporaryDirectory(prefix="sp-", dir="/tmp") as name:
        bucket = Path(name) / "bucket"
        bucket.mkdir()
        settings = (
            SHARED[which].format(url=bucket.as_uri())
            + "[timing]\nclaim_every_s = 1.0\noffers_every_s = 0.5\nsurvey_every_s = 1.0"
        )
        with (
            SharingBox(Path(name) / "one", settings=settings) as one,
            SharingBox(Path(name) / "copy", settings=settings) as copy,
        ):
            if which == "checkpoints":
                one.shared = copy.shared = bucket.as_uri()
            one.start()
            copy.cloud_url, copy.token_file = one.cloud_url, one.token_file
            _tell_story(one, copy, LocalStore(bucket))


def _tell_story(one: Box, copy: Box, objects: LocalStore) -> None:
    job_id = one.submit(JOB, "r1")
    one.wait_phase(job_id, {"running"}, LIMIT_S)
    spotd(one, "db", "backup", str(copy.folder / "backup"))
    copy.write_config()
    spotd(copy, "db", "restore", str(copy.folder / "backup"))
    shutil.copy(one.folder / "state" / "spotd-key", copy.folder / "state" / "spotd-key")
    moves(objects, 2)  # it lives on, and the backup grows old

    copy.start_daemon()
    wait_for("the copy to stand still", lambda: why(copy), LIMIT_S)
    copy.client.call(routes.CANCEL_JOB(job=job_id))  # its user, at the wrong box
    moves(objects, 6)
    assert why(copy)
    assert not why(one)
    assert len(open_machines(one)) == 1
    assert one.job(job_id)["phase"] == "running"
    told = [row["kind"] for row in copy.client.call(routes.READ_EVENTS())["items"]]
    assert told.count("contested") == 1

    one.kill_daemon()
    wait_for("the copy to go on", lambda: not why(copy), LIMIT_S)
    copy.wait_phase(job_id, {"cancelled"}, LIMIT_S)
    assert open_machines(one) == []


@pytest.mark.xdist_group("daemon")
def test_a_folder_that_was_copied_with_all_that_is_in_it_begins_in_quarantine() -> None:
    """The claim lies in that folder, too, and says nothing of the other."""
    with (
        tempfile.TemporaryDirectory(prefix="sp-", dir="/tmp") as name,
        ForkedBox(Path(name) / "one") as one,
        ForkedBox(Path(name) / "copy") as copy,
    ):
        one.start()
        one.kill_daemon()
        shutil.copytree(one.folder / "state", copy.folder / "state")
        copy.cloud_url, copy.token_file = one.cloud_url, one.token_file
        for box, moved in ((copy, True), (one, False)):
            box.start_daemon()
            assert (MOVED in box.client.call(routes.SHOW_QUARANTINE())["reason"]) is moved
            told = [row["kind"] for row in box.client.call(routes.READ_EVENTS())["items"]]
            assert told.count("quarantine") == moved
