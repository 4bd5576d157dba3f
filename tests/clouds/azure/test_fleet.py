"""Machines back the virtual machines of the Azure stand-in: they boot by the PUT's data, are
created when they report ready, and receive Scheduled Events."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from providers import cloud_init
from providers.azure.cloud import AzureCloud
from providers.base import Instance, InstanceState
from spotd.demo.box import wait_for
from tests.clouds.azure.arm import Arm
from tests.clouds.azure.serving import StandIn, serving
from tests.clouds.machines import Machines, machines_on
from tests.fixtures import netns
from tests.fixtures.local_cloud import find, launch_request, run, wait_state
from tests.fixtures.waiting import LIMIT_S

pytestmark = pytest.mark.root

UP_S = 180.0
EVENTS = "http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01"
ASK = f"curl -s -H 'Metadata: true' '{EVENTS}'"
_numbers = itertools.count()


@dataclass(frozen=True)
class Lab:
    standin: StandIn
    machines: Machines

    @property
    def arm(self) -> Arm:
        return self.standin.arm

    def cloud(self, **settings: Any) -> AzureCloud:
        own = {"resource_group": f"own{next(_numbers)}", "regions": ("eastus",)}
        return AzureCloud("azure", "d0", **{**self.standin.settings, **own, **settings})


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("azure")
    with (
        netns.network() as network,
        machines_on(network, folder / "machines") as machines,
        serving(folder, machines=machines) as standin,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in standin.environ.items():
            patch.setenv(name, value)
        yield Lab(standin, machines)


@pytest.fixture
def lab(running: Lab) -> Iterator[Lab]:
    yield running
    running.machines.end_all()
    assert running.arm.wrong == []


def up(cloud: AzureCloud, token: str) -> Instance:
    """Return the machine once SSH works."""

    def ask() -> Instance | None:
        with suppress(Exception):
            result = find(cloud, token)
            return result if result and result.host and run(result, "true").code == 0 else None
        return None

    result = wait_for(f"{token} to be up", ask, UP_S, every_s=0.2)
    assert result
    return result


def events(machine: Instance) -> Any:
    """Return its Scheduled Events."""
    return json.loads(run(machine, ASK).out)["Events"]


def test_a_machine_is_what_was_asked_for_until_it_is_evicted(lab: Lab) -> None:
    cloud = lab.cloud()
    cloud.launch(launch_request(cloud, "first"))
    machine = up(cloud, "first")
    assert machine.state is InstanceState.RUNNING
    assert lab.machines.running() == ["first"]
    assert machine.host == lab.machines.machine("first").host
    output = run(machine, "whoami; sudo -n whoami; hostname").out
    assert output.split() == ["spotd", "root", "first"]
    state = wait_for("it", lambda: run(machine, f"cat {cloud_init.STATE_FILE}").out, UP_S)
    assert state == "ok\n", "the custom data went over the wire"
    assert events(machine) == []
    end_s = time.monotonic() + 4
    lab.arm.preempt("first", left_s=4)
    [event] = events(machine)
    assert (event["EventType"], event["Resources"]) == ("Preempt", ["first"])
    [taking] = lab.arm.fleet.takings
    assert taking.instance_id == machine.instance_id
    assert lab.machines.running() == ["first"]
    wait_for("its end", lambda: not lab.machines.running(), LIMIT_S)
    assert time.monotonic() >= end_s
    assert find(cloud, "first") is None
    entry = lab.arm.fleet.books["first"]
    assert entry.ended_at_us > entry.launched_at_us


def test_one_that_agrees_to_its_end_is_not_kept_waiting(lab: Lab) -> None:
    """Also for an eviction on request. A create that nobody reports ready goes on."""
    cloud = lab.cloud()
    cloud.launch(launch_request(cloud, "agrees"))
    machine = up(cloud, "agrees")
    cloud.interrupt("agrees")
    [event] = wait_for("the event", lambda: events(machine), LIMIT_S, every_s=0.5)
    body = json.dumps({"StartRequests": [{"EventId": event["EventId"]}]})
    run(machine, f"{ASK} -d '{body}'")
    wait_for("its end", lambda: not lab.machines.running(), LIMIT_S)
    assert find(cloud, "agrees") is None


def test_a_machine_that_has_not_reported_ready_is_being_made_and_can_be_given_back(
    lab: Lab,
) -> None:
    cloud = lab.cloud(network="private")
    cloud.launch(launch_request(cloud, "slow"))
    machine = wait_state(cloud, "slow", InstanceState.PENDING, InstanceState.RUNNING)
    assert machine.host == lab.machines.machine("slow").host
    assert not [key for key in lab.arm.world.others if "publicipaddresses/slow" in key]
    cloud.terminate(machine.instance_id)
    assert lab.machines.running() == []
    assert "slow" not in lab.arm.fleet.running()


def test_one_that_is_switched_off_from_inside_is_paid_for_until_it_is_deleted(lab: Lab) -> None:
    cloud = lab.cloud()
    cloud.launch(launch_request(cloud, "off"))
    machine = up(cloud, "off")
    run(machine, "sudo -n shutdown -h now")
    wait_for("its end", lambda: not lab.machines.running(), LIMIT_S)
    assert lab.arm.fleet.running() == ["off"]
    assert lab.arm.machine("off").power == "stopped"
    cloud.terminate(machine.instance_id)
    assert lab.arm.fleet.running() == []
