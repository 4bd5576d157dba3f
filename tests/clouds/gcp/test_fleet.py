"""Machines back the instances of the Google Cloud stand-in: they boot by the data of
instances.insert, learn of their end when the API does, and end with their instance."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from providers import cloud_init
from providers.base import Instance, InstanceState
from providers.gcp.cloud import GcpCloud
from spotd.demo.box import wait_for
from tests.clouds.gcp.gce import Gce
from tests.clouds.gcp.serving import StandIn, serving
from tests.clouds.machines import Machines, machines_on
from tests.fixtures import netns
from tests.fixtures.local_cloud import find, launch_request, run, wait_state
from tests.fixtures.waiting import LIMIT_S

pytestmark = pytest.mark.root

UP_S = 180.0
PREEMPTED = (
    "curl -s -H 'Metadata-Flavor: Google' "
    "http://169.254.169.254/computeMetadata/v1/instance/preempted"
)
_numbers = itertools.count()


@dataclass(frozen=True)
class Lab:
    standin: StandIn
    machines: Machines

    @property
    def gce(self) -> Gce:
        return self.standin.gce

    def cloud(self, **settings: Any) -> GcpCloud:
        passed = {
            "project": "lab",
            "regions": ("us-central1",),
            **self.standin.settings,
            **settings,
        }
        return GcpCloud("gcp", f"d{next(_numbers)}", **passed)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("gcp")
    with (
        netns.network() as network,
        machines_on(network, folder / "machines") as machines,
        serving(folder, machines=machines) as standin,
    ):
        yield Lab(standin, machines)


@pytest.fixture
def lab(running: Lab) -> Iterator[Lab]:
    yield running
    running.machines.end_all()
    assert running.gce.problems == []


def up(cloud: GcpCloud, token: str) -> Instance:
    """Return the machine once its host key is known and SSH works with it."""

    def ask() -> Instance | None:
        with suppress(Exception):
            result = find(cloud, token)
            return result if result and result.host and run(result, "true").code == 0 else None
        return None

    result = wait_for(f"{token} to be up", ask, UP_S, every_s=0.2)
    assert result
    return result


def test_a_machine_is_what_was_asked_for_until_it_is_preempted(lab: Lab) -> None:
    cloud = lab.cloud()
    cloud.launch(launch_request(cloud, "first"))
    machine = up(cloud, "first")
    [name] = lab.machines.running()
    assert machine.host == lab.machines.machine(name).host
    assert machine.host_public_key == " ".join(lab.machines.host_key(name).split()[:2])
    output = run(machine, "whoami; sudo -n whoami; hostname").out
    assert output.split() == ["spotd", "root", name]
    state = wait_for("it", lambda: run(machine, f"cat {cloud_init.STATE_FILE}").out, UP_S)
    assert state == "ok\n", "the user data went over the wire"
    assert cloud.notices() == []
    assert run(machine, PREEMPTED).out == "FALSE"
    end_s = time.monotonic() + 4
    lab.gce.preempt("lab", machine.instance_id, left_s=4)
    assert run(machine, PREEMPTED).out == "TRUE"
    [notice] = cloud.notices()
    assert notice.instance_id == machine.instance_id
    [taking] = lab.gce.fleet.takings
    assert taking.instance_id == machine.instance_id
    assert lab.machines.running() == [name]
    wait_for("its end", lambda: not lab.machines.running(), LIMIT_S)
    assert time.monotonic() >= end_s
    assert find(cloud, "first") is None
    entry = lab.gce.fleet.books[name]
    assert entry.token == "first"
    assert entry.ended_at_us > entry.launched_at_us


def test_the_notice_is_as_long_as_was_asked_for(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[float] = []
    take = lambda _name, end_us, _gone: reported.append(end_us / 1e6)  # noqa: E731
    monkeypatch.setattr(lab.gce.fleet, "take", take)
    cloud = lab.cloud()
    cloud.launch(launch_request(cloud, "asked"))
    machine = wait_state(cloud, "asked", InstanceState.RUNNING)
    before_s = time.time()
    lab.gce.preempt("lab", machine.instance_id)
    key = tuple(machine.instance_id.split("/"))
    del lab.gce.project("lab").machines[key].row["scheduling"]["preemptionNoticeDuration"]
    lab.gce.preempt("lab", machine.instance_id)
    for end_s, notice_s in zip(reported, (120.0, 30.0), strict=True):
        assert before_s - 1.0 <= end_s - notice_s <= time.time()
    cloud.terminate(machine.instance_id)


@pytest.mark.parametrize(("network", "public"), [("public", True), ("private", False)])
def test_it_ends_with_its_instance_and_is_private_if_that_is_asked_for(
    lab: Lab, network: str, public: bool
) -> None:
    cloud = lab.cloud(network=network)
    cloud.launch(launch_request(cloud, network))
    machine = wait_state(cloud, network, InstanceState.RUNNING)
    [name] = lab.machines.running()
    row = lab.gce.project("lab").machines[machine.instance_id.split("/")[0], name].row
    [card] = row["networkInterfaces"]
    assert card["networkIP"] == lab.machines.machine(name).host
    outside = [access["natIP"] for access in card["accessConfigs"]]
    assert outside == ([card["networkIP"]] if public else [])
    cloud.terminate(machine.instance_id)
    assert lab.machines.running() == []
    assert name not in lab.gce.fleet.running()


def test_one_that_is_taken_on_request_hears_of_it_and_switched_off_is_one_that_ends(
    lab: Lab,
) -> None:
    """Uses the command that the adapter gives to the agent."""
    cloud = lab.cloud()
    cloud.launch(launch_request(cloud, "off"))
    machine = up(cloud, "off")
    cloud.interrupt(machine.instance_id)
    wait_for("its notice", lambda: run(machine, PREEMPTED).out == "TRUE", LIMIT_S, every_s=0.2)
    run(machine, " ".join(cloud.power_off))
    wait_state(cloud, "off", InstanceState.STOPPING)
    assert lab.machines.running() == []
