"""A job on a machine of fake AWS that has no address of the internet, and a jump host that dies
while it runs. Needs root; without it, a failure."""

from __future__ import annotations

import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from spotd.act.jump_hosts import TELL_S
from spotd.api_routes import routes
from spotd.demo import s3
from spotd.demo.box import Box, wait_for
from spotd.demo.bucket import Bucket
from tests.clouds.aws.serving import PROFILE, StandIn, serving
from tests.clouds.jump import Private, behind_a_jump_host
from tests.fixtures import netns

pytestmark = pytest.mark.root

LOST_S = 10.0  # less than the jump host is away: a silence that counted would end the machine
AWAY_S = TELL_S + 3.0
SETTINGS = f"""
[limits]
max_nodes = 4
max_usd_per_hour = 2.0
[timing]
survey_every_s = 1
resurvey_s = 2
reterminate_s = 2
suspect_after_s = 4
lost_after_s = {LOST_S}
[providers.aws]
kind = "aws"
regions = ["us-east-1"]
profile = "{PROFILE}"
instance_types = ["c5.xlarge"]
"""
JOB = """\
name: away
resources:
  infra: aws
  cpus: 1+
  use_spot: true
run: for i in $(seq 60); do echo line $i; sleep 0.5; done
"""
UP_S = 180.0
OURS = Path(sys.executable)
# What the agent needs for a bucket is in our own Python, and on no image by itself.
PYTHON = {"/usr/local/bin/python3": f'exec {OURS} "$@"'}
READABLE = [OURS, OURS.resolve(), Path(sysconfig.get_path("purelib")) / "any"]


class PrivateBox(Box):
    """The daemon alone, its machines behind the jump host."""

    def __init__(self, folder: Path, aws: StandIn, store: Bucket, private: Private) -> None:
        super().__init__(folder, settings=SETTINGS, bucket=store)
        self._aws = aws
        self._settings += private.settings(self.folder)

    def provider_lines(self) -> list[str]:
        return []  # in its settings

    def environ(self) -> dict[str, str]:
        return super().environ() | self._aws.environ | {"PYTHONPATH": str(netns.CHECKOUT)}

    def texts(self, job_id: str, kind: str) -> list[str]:
        return [event["text"] for event in self.events(job_id) if event["kind"] == kind]

    def told(self) -> list[str]:
        """Of the jump host, as people are told."""
        items = self.client.call(routes.READ_EVENTS(), query={"after": 0})["items"]
        return [event["text"] for event in items if event["kind"] == "jump"]


@pytest.fixture
def place(folder: Path) -> Iterator[tuple[PrivateBox, Private]]:
    with (
        netns.network() as network,
        s3.serving(network.gateway) as store,
        behind_a_jump_host(network, folder, readable=READABLE) as private,
        serving(folder, machines=private.machines, network="jump") as aws,
        PrivateBox(folder / "box", aws, store, private) as box,
    ):
        private.let_reach(store)
        private.machines.next_programs = PYTHON
        box.start_daemon()
        yield box, private


@contextmanager
def telling(box: PrivateBox, private: Private, job_id: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        print(*(f"{e['at']} {e['kind']}: {e['text']}" for e in box.events(job_id)), sep="\n")
        print(box.tail("daemon", 60), private.jump.server.said()[-3000:], sep="\n---\n")
        raise


def check(box: PrivateBox) -> dict[str, Any]:
    rows = box.client.call(routes.DOCTOR())["checks"]
    return next(row for row in rows if row["name"] == "jump host of aws")


@pytest.mark.e2e
def test_a_jump_host_that_dies_ends_no_machine_and_is_told_of_once(
    place: tuple[PrivateBox, Private],
) -> None:
    box, private = place
    assert check(box)["ok"]
    job_id = box.submit(JOB, "away")
    with telling(box, private, job_id):
        wait_for("its first line", lambda: box.job(job_id)["phase"] == "running", UP_S)
        private.jump.server.stop()
        started_s = time.monotonic()
        wait_for("people to be told", box.told, AWAY_S + 10)
        assert not check(box)["ok"]
        time.sleep(max(0.0, started_s + AWAY_S - time.monotonic()))
        assert box.texts(job_id, "lost") == []
        assert box.texts(job_id, "unheard") == []
        private.jump.server.start()
        box.wait_phase(job_id, {"succeeded"}, UP_S)
        wait_for("the end of it to be told", lambda: len(box.told()) == 2, UP_S)
    job, (gone, back) = box.job(job_id), box.told()
    assert job["generation"] == 1, "on the machine that it began on"
    host = f"root@{private.jump.cable.host}:22"
    assert gone.startswith(f"jump host {host} of provider aws cannot be reached: ")
    assert back == "the jump host of provider aws responds again"
    wait_for("the machine to be given back", lambda: not private.machines.running(), UP_S)
