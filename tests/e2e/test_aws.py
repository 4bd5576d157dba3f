"""A job on fake AWS, through the real SDK: RunInstances, a machine that cloud-init sets up by our
user data, its IMDS, OpenSSH, the agent and the trainer. Needs root; without it, a failure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spotd.demo.heads import HeadWatch
from tests.clouds.machines import Machines
from tests.clouds.machines_boot import CLOCK
from tests.e2e.clouds import CloudBox, CloudRun, running_aws, submit
from tests.e2e.rig import Reference, job_file
from tests.e2e.scenarios import expect
from tests.e2e.verdict import judge

STEP_MS = 150  # so that another machine has come up before all is trained
NOTICE_S = 40.0


@pytest.fixture
def aws(folder: Path, python: Path) -> Iterator[tuple[CloudBox, Machines]]:
    with running_aws(folder, python) as running:
        yield running


@contextmanager
def telling(run: CloudRun) -> Iterator[None]:
    try:
        yield
    except BaseException:
        print(*run.tell(), sep="\n")
        raise


def slow_job(python: Path, name: str) -> str:
    text = job_file(python, name=name, infra="aws")
    return text.replace("--step-time-ms 40", f"--step-time-ms {STEP_MS}")


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_a_job_that_is_reclaimed_ends_as_if_nothing_had_happened(
    aws: tuple[CloudBox, Machines], python: Path, reference: Reference
) -> None:
    box, machines = aws
    run = submit(box, machines, slow_job(python, "reclaimed"), "reclaimed")
    with telling(run):
        with HeadWatch(box.checkpoints_url, run.job_id, box.store_options) as watch:
            first = run.training(step=5)
            run.interrupt(first["instance_id"], NOTICE_S)
            second = run.training(step=1, generation=2)
            run.finish()
        assert expect(run, generation=2)["failures"] == 0
        wrong = judge(run, reference, watch.versions)
        assert not wrong, "\n".join([*wrong, *run.story])
        assert run.left_behind() == []
    regions = {node["instance_id"].split("/")[0] for node in (first, second)}
    assert regions == {"us-east-1", "us-west-2"}, "not again where it was just taken away"
    sources = [e["text"] for e in box.events(run.job_id) if e["kind"] == "notice"]
    assert len(sources) == 1, "what IMDS and the spot request both tell is one notice"


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_a_machine_that_comes_up_unwell_is_left_before_anything_runs_on_it(
    aws: tuple[CloudBox, Machines], python: Path, reference: Reference
) -> None:
    box, machines = aws
    machines.programs = {CLOCK: "echo no"}
    run = submit(box, machines, slow_job(python, "unwell"), "unwell")
    with telling(run):
        with HeadWatch(box.checkpoints_url, run.job_id, box.store_options) as watch:
            run.wait_launched()
            machines.programs = {}
            run.finish()
        assert expect(run, generation=2)["failures"] == 0
        wrong = judge(run, reference, watch.versions)
        assert not wrong, "\n".join([*wrong, *run.story])
        assert run.left_behind() == []
        told = [e["text"] for e in box.events(run.job_id) if e["kind"] == "unfit"]
        assert len(told) == 1
        assert "the clock is not set" in told[0]
        left = [e["text"] for e in box.events(run.job_id) if e["kind"] == "node_leaving"]
        assert "not fit to train on: the clock is not set: no time server answers" in left[0]
