"""What a job's summary counts, and what it calls saved."""

from __future__ import annotations

import pytest

from spotd.domain.states import LeaveReason
from tests.fixtures.path_client import PathClient
from tests.spotd.api.rig import OFFERS, SPOT, Rig


@pytest.mark.parametrize(
    ("left", "count"),
    [
        (LeaveReason.PREEMPTED, 1),
        (LeaveReason.LOST, 1),
        (LeaveReason.CANCELLED, 0),  # a pause
        (LeaveReason.FAILED, 0),
    ],
)
def test_a_recovery_follows_a_machine_that_went(
    rig: Rig, client: PathClient, left: LeaveReason, count: int
) -> None:
    job_id = rig.submit(ago_s=6000)
    first = rig.launch(job_id, SPOT, ago_s=5900)
    rig.train(first, ago_s=5800, until_s=5000, first=0, last=10)
    rig.leave(first, 4900, left, "as the test wants")
    assert client.get("/v1/jobs/gpt")["recoveries"] == 0, "nothing trains again yet"
    second = rig.launch(job_id, OFFERS[2], ago_s=4800)
    assert client.get("/v1/jobs/gpt")["recoveries"] == 0
    rig.train(second, ago_s=4700, until_s=4000, first=10, last=20)
    assert client.get("/v1/jobs/gpt")["recoveries"] == count
    assert client.get("/v1/jobs")["items"][0]["recoveries"] == count


def test_the_empty_manifest_of_a_script_saves_nothing(rig: Rig, client: PathClient) -> None:
    node = rig.launch(rig.submit(ago_s=110), SPOT, ago_s=100)
    rig.say(node, 50, "checkpoint", step=0, manifest="m", bytes=0, final=True, released=True)
    assert client.get("/v1/jobs/gpt")["last_checkpoint"] is None
    rig.say(node, 40, "checkpoint", step=5, manifest="m5", bytes=10)
    rig.say(node, 30, "checkpoint", step=0, manifest="m6", bytes=0)
    assert client.get("/v1/jobs/gpt")["last_checkpoint"]["step"] == 5
