"""The box is lost, and there is no backup: a new database goes on from the checkpoints, while the
machine of the old one still trains. Real daemons, machines, SSH, agents and torch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from providers.stores.local import LocalStore
from spotd.api_routes import routes
from spotd.base.errors import ExitCode
from spotd.cli.app import run as spotctl
from spotd.demo.box import Box, wait_for
from spotd.demo.facts import losses_by_generation
from spotd.demo.heads import HeadWatch, zombie_commits
from spotd.wire import EXIT_FENCED, EXITED
from tests.e2e.rig import SCENARIO, STEPS, Reference, job_file, open_records
from tests.e2e.verdict import losses, state
from tests.fixtures.waiting import LIMIT_S

CLAIM_S = 1.0  # four of these, and the lost box is known to be gone
SLOW_MS = 150  # a step: the old machine still trains when the new one comes


class Control(Box):
    """A control box whose packages and checkpoints are kept outside of it, as in buckets."""

    def __init__(self, folder: Path, cloud: Box, deployment: str = "") -> None:
        given = f'id = "{deployment}"\n' if deployment else ""
        super().__init__(
            folder,
            settings=f'[deployment]\n{given}store = "file://{folder.parent}/bucket"\n'
            f"[timing]\nclaim_every_s = {CLAIM_S}\nsurvey_every_s = 1.0\noffers_every_s = 0.5",
            python=cloud.python,
        )
        self.cloud_url, self.token_file = cloud.cloud_url, cloud.token_file

    @property
    def checkpoints_url(self) -> str:
        return (self.folder.parent / "checkpoints").as_uri()


@pytest.fixture
def cloud(folder: Path, python: Path) -> Iterator[Box]:
    with Box(folder / "cloud", SCENARIO, python=python) as box:
        box.start_cloud()
        yield box


def deployment_in(bucket: Path) -> str:
    """The lost database's, as a person finds it in the deployment's store."""
    [info] = LocalStore(bucket).list("claims/")
    return info.key.removeprefix("claims/")


def trains(box: Box, job_id: str, step: int) -> bool:
    return any(n["state"] == "running" and n["step"] >= step for n in box.job(job_id)["nodes"])


def exits(cloud: Box, instance: str, job_id: str) -> list[int]:
    """The codes with which programs ended there, by the machine's own journal."""
    folder = cloud.folder / "cloud" / "instances" / instance
    rows = [
        json.loads(line)
        for path in folder.glob(f".spotd/{job_id}/g*/journal.jsonl")
        for line in path.read_text().splitlines()
    ]
    entries = [row.get("journal", row) for row in rows]
    return [row["data"]["code"] for row in entries if row["kind"] == EXITED]


def orphans(box: Box) -> list[dict[str, Any]]:
    return list(box.client.call(routes.LIST_ORPHANS())["items"])


@pytest.mark.e2e
def test_a_job_goes_on_from_its_checkpoints_under_a_new_database(
    folder: Path,
    cloud: Box,
    reference: Reference,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = folder / "tiny.yaml"
    file.write_text(job_file(cloud.python, step_ms=SLOW_MS))
    with Control(folder / "lost", cloud) as lost:
        lost.start_daemon()
        job_id = lost.submit(file.read_text(), "one")
        wait_for("a checkpoint", lambda: lost.job(job_id)["last_checkpoint"], LIMIT_S)
        wait_for("it to train", lambda: trains(lost, job_id, 20), LIMIT_S)
        [old] = cloud.meter()
        lost.kill_daemon()
        shutil.rmtree(lost.folder)

    with (
        HeadWatch((folder / "checkpoints").as_uri(), job_id) as watch,
        Control(folder / "new", cloud, deployment_in(folder / "bucket")) as box,
    ):
        box.start_daemon()
        command = ["--socket", str(box.socket_path), "run", str(file), "-d", "--continue"]
        assert spotctl([*command, "jaaaaaaaaa"]) == ExitCode.NOT_FOUND
        assert f"{job_id} (step " in capsys.readouterr().err
        assert spotctl([*command, job_id]) == 0
        assert "tiny continues from step" in capsys.readouterr().err

        wait_for("the new machine to train", lambda: trains(box, job_id, 1), LIMIT_S)
        fenced = [EXIT_FENCED]
        instance = str(old["instance_id"])
        wait_for("the old one to stop", lambda: exits(cloud, instance, job_id) == fenced, LIMIT_S)
        box.wait_phase(job_id, {"succeeded"}, LIMIT_S)
        job = box.job(job_id)
        [held] = orphans(box)
        assert (held["id"], held["job"], held["ours"]) == (instance, job_id, True)
        assert box.client.call(routes.SHOW_QUARANTINE())["active"]
        assert state(box, job_id, reference) == []
        records = open_records(box)
        try:
            progress = records.progress.rows(job_id)
        finally:
            records.close()

    assert [node["generation"] for node in job["nodes"]] == [2], "more machines than needed"
    assert (job["failures"], job["step"]) == (0, STEPS)
    assert losses(progress, reference) == []
    assert zombie_commits(watch.versions) == 0
    before = [head for head in watch.versions if head.generation == 1]
    after = watch.versions[len(before) :]
    assert {head.generation for head in after} == {2}, "HEAD went back"
    left, taken = before[-1].current, after[0].current
    assert left is not None
    assert taken is not None
    assert (taken.generation, taken.step >= left.step) == (1, True), "a committed step was lost"
    assert losses_by_generation(progress)[2][0][0] == taken.step + 1
    assert taken.step >= 20
