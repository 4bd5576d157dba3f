"""`spotctl doctor --live --gpu` through a cloud's real SDK: it takes the job's machine by its own
simulation, by a notice at that machine's metadata service, and the report says what came of it.
SPOTD_REHEARSE=aws,gcp,azure does it on all three at once; that a machine is believed to be gone
takes a minute on the other two, whose notices tests/clouds shows. Needs root; without it, a
failure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spotd.api_routes import routes
from spotd.demo.box import wait_for
from tests.e2e.clouds import H100, CloudBox, running_box, running_clouds
from tests.e2e.demo_clouds import job_file
from tests.fixtures.waiting import LIMIT_S

pytestmark = pytest.mark.root

ALL = ("aws", "gcp", "azure")
CLOUDS = tuple(os.environ.get("SPOTD_REHEARSE", "aws").split(","))
PROGRAM = "from spotd.cli import main; main()"
STEPS = 5000  # more than it ever comes to


def rehearse(box: CloudBox, cloud: str, job: Path) -> subprocess.Popen[str]:
    words = ("doctor", "--live", "--gpu", str(job), "--cloud", cloud, "--spend-up-to", "200usd")
    words += ("--config", str(box.config_path), "--report", str(box.folder / "reports"))
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "--socket", str(box.socket_path), *words],
        cwd=box.folder,
        env=box.environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def on_sale(box: CloudBox) -> set[str]:
    return {offer["provider"] for offer in box.client.call(routes.LIST_OFFERS())["items"]}


@pytest.mark.e2e
def test_the_cloud_takes_the_machine_and_the_job_goes_on(folder: Path) -> None:
    with (
        running_clouds(
            folder / "box", Path(sys.executable), dict.fromkeys(ALL, "public")
        ) as clouds,
        running_box(folder / "box", clouds, Path(sys.executable)) as box,
    ):
        job = folder / "job.yaml"
        job.write_text(job_file("mine", STEPS))
        wait_for("offers", lambda: on_sale(box) >= {*CLOUDS}, LIMIT_S)
        started = {cloud: rehearse(box, cloud, job) for cloud in CLOUDS}
        said = {cloud: process.communicate(timeout=200) for cloud, process in started.items()}
        print(*(text for _, text in said.values()), sep="\n")  # shown where it fails
        for cloud, process in started.items():
            assert process.returncode == 0, (cloud, said[cloud], box.tail("daemon"))
            check(cloud, json.loads(Path(said[cloud][0].strip()).read_text()), box)
        checks = {row["name"]: row["text"] for row in box.client.call(routes.DOCTOR())["checks"]}
        for cloud in CLOUDS:
            assert checks[f"live {cloud}"].startswith(f"last live report of {cloud}: never, ")
            assert checks[f"live {cloud}"].endswith(", today"), "of the recovery"
        assert len(box.takings()) == len(CLOUDS), "each by its own metadata service"
        assert clouds.left() == {name: [] for name in (*ALL, "namespaces")}


def check(cloud: str, report: dict[str, Any], box: CloudBox) -> None:
    assert report["ok"], report
    assert report["steps_lost"] == 0, report
    assert report["from"]["provider"] == report["to"]["provider"] == cloud
    assert report["from"]["instance_type"] == H100[cloud]
    seconds = {mark["name"]: mark["seconds"] for mark in report["milestones"]}
    assert 0 <= seconds["notice heard"] < 60
    assert 0 < seconds["saved"] <= seconds["released"]
    assert seconds["replacement requested"] < seconds["trains again"]
    assert report["resumed_step"] == report["saved_step"] > 0
    assert 0 < report["cost_usd"] < 200
