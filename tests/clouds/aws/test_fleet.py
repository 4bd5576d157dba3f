"""Machines (or addresses that lead nowhere) back the stand-in's instances, and cloud and machine
report an interruption at the same time."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from providers.aws.cloud import AwsCloud
from providers.aws.listing import split_name
from providers.base import InstanceState
from spotd.demo.box import wait_for
from tests.clouds.aws.ec2 import NOTICE
from tests.clouds.aws.serving import PROFILE, StandIn, serving
from tests.clouds.machines import Machines, machines_on
from tests.fixtures import netns
from tests.fixtures.local_cloud import launch_request, launch_running, run, wait_state
from tests.fixtures.waiting import LIMIT_S

UP_S = 180.0
ADDRESS = re.compile(rb"<(?:ip|privateIp)Address>([^<]+)<|<publicIp>([^<]+)<|[Dd]nsName>([^<]+)<")
_numbers = itertools.count()
IMDS = """
base=http://169.254.169.254/latest
token=$(curl -sf -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' $base/api/token)
curl -s -H "X-aws-ec2-metadata-token: $token" $base/meta-data/spot/instance-action
"""


class Recorded:
    """Records every answer of the stand-in."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.answers: list[bytes] = []

    def __call__(self, environ: Any, start: Any) -> list[bytes]:
        answer = b"".join(self.app(environ, start))
        self.answers.append(answer)
        return [answer]


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    with monkeypatch.context() as patch:
        yield patch


@pytest.fixture
def network() -> str:
    return "public"


@pytest.fixture
def nowhere(tmp_path: Path, patched: pytest.MonkeyPatch, network: str) -> Iterator[StandIn]:
    with serving(tmp_path, network=network) as running:
        for name, value in running.environ.items():
            patched.setenv(name, value)
        yield running


@pytest.fixture
def aws(tmp_path: Path, patched: pytest.MonkeyPatch) -> Iterator[tuple[StandIn, Machines]]:
    with (
        netns.network() as network,
        machines_on(network, tmp_path / "machines") as machines,
        serving(tmp_path, machines=machines) as running,
    ):
        for name, value in running.environ.items():
            patched.setenv(name, value)
        yield running, machines


def cloud(network: str = "public") -> AwsCloud:
    """Every test has a deployment of its own, because moto forgets nothing."""
    return AwsCloud(
        "aws",
        f"d-{next(_numbers)}",
        regions=("us-east-1",),
        profile=PROFILE,
        instance_types=("g6.*",),
        network=network,
    )


@pytest.fixture
def token() -> str:
    return f"token-{next(_numbers)}"


@pytest.mark.parametrize("network", ["public", "private"])
def test_without_machines_no_answer_has_an_address_that_leads_anywhere(
    nowhere: StandIn, network: str, token: str
) -> None:
    provider, ec2 = cloud(network), nowhere.ec2
    request = launch_request(provider, token)
    recorded = Recorded(ec2._app)
    ec2._app = recorded
    launch, launched = ec2.fleet.launch, list[bytes]()

    def record(*arguments: Any) -> bytes:
        launched.append(launch(*arguments))
        return launched[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ec2.fleet, "launch", record)
        provider.launch(request)
    [instance] = provider.list()
    assert instance.host.startswith("192.0.2.")
    for answer in (*launched, recorded.answers[-1]):
        hosts = [next(filter(None, result)).decode() for result in ADDRESS.findall(answer)]
        assert len(hosts) >= 2
        assert [host for host in hosts if "192.0.2." not in host.replace("-", ".")] == []


@pytest.mark.root
def test_an_instance_is_a_machine_until_it_is_terminated(
    aws: tuple[StandIn, Machines], token: str
) -> None:
    standin, machines = aws
    provider = cloud()
    instance = launch_running(provider, token)
    _, name = split_name(instance.instance_id)
    assert machines.running() == [name]
    assert instance.host == machines.machine(name).host
    assert reachable(instance).out == "spotd\n"
    provider.launch(launch_request(provider, token))  # a replay
    assert machines.running() == [name]
    provider.terminate(instance.instance_id)
    assert machines.running() == []
    entry = standin.ec2.fleet.books[name]
    assert entry.token == token
    assert entry.ended_at_us > entry.launched_at_us
    provider.terminate(instance.instance_id)


def reachable(instance: Any) -> Any:
    """Return the output of `whoami` once the machine is up."""

    def ask() -> Any:
        with suppress(Exception):
            return run(instance, "whoami")
        return None

    return wait_for("SSH", ask, UP_S)


@pytest.mark.root
def test_an_interruption_is_told_on_both_sides_and_then_it_is_taken(
    aws: tuple[StandIn, Machines], token: str
) -> None:
    standin, machines = aws
    provider = cloud()
    instance = launch_running(provider, token)
    reachable(instance)
    assert provider.notices() == []
    end = (datetime.now(UTC) + timedelta(seconds=12)).replace(microsecond=0)
    standin.ec2.interrupt(split_name(instance.instance_id)[1], end - NOTICE)
    output = json.loads(run(instance, IMDS).out)
    assert output == {"action": "terminate", "time": end.strftime("%Y-%m-%dT%H:%M:%SZ")}
    [notice] = provider.notices()
    assert notice.instance_id == instance.instance_id
    assert notice.deadline_us == int(end.timestamp()) * 1_000_000
    assert machines.running()
    ended = wait_state(provider, token, InstanceState.TERMINATED, InstanceState.STOPPING)
    assert datetime.now(UTC) >= end
    assert "Server.SpotInstanceTermination" in ended.error
    wait_for("the machine to be gone", lambda: not machines.running(), LIMIT_S)
    assert provider.notices() == []


@pytest.mark.root
def test_one_that_was_given_back_is_not_taken_again(
    aws: tuple[StandIn, Machines], token: str
) -> None:
    standin, _ = aws
    provider = cloud()
    instance = launch_running(provider, token)
    name = split_name(instance.instance_id)[1]
    provider.terminate(instance.instance_id)
    before = standin.ec2.fleet.books[name].ended_at_us, provider.list()[0].error
    standin.ec2._take(name)
    assert (standin.ec2.fleet.books[name].ended_at_us, provider.list()[0].error) == before
    assert "SpotInstanceTermination" not in before[1]


@pytest.mark.root
def test_one_that_is_switched_off_from_inside_is_terminated(
    aws: tuple[StandIn, Machines], token: str
) -> None:
    """Uses the command that the adapter gives to the agent."""
    _, machines = aws
    provider = cloud()
    instance = launch_running(provider, token)
    reachable(instance)
    run(instance, " ".join(provider.power_off))
    ended = wait_state(provider, token, InstanceState.TERMINATED, InstanceState.STOPPING)
    assert "Client.InstanceInitiatedShutdown" in ended.error
    assert machines.running() == []
