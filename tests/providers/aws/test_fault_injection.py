"""A spot interruption on request by FIS, validated by the SDK's model of FIS."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from providers.aws import fault_injection
from providers.aws.cloud import AwsCloud
from providers.base import AuthError, CapacityType, RejectedError
from providers.fault_injection import FaultInjector
from tests.clouds.aws.ec2 import ACCOUNT
from tests.clouds.faults import Fault
from tests.fixtures.waiting import until
from tests.providers.aws.conftest import Rented
from tests.providers.aws.test_launch import PAGE

VERBS = ("CreateExperimentTemplate", "StartExperiment", "DeleteExperimentTemplate")


@pytest.fixture
def cloud(rented: Rented, monkeypatch: pytest.MonkeyPatch) -> Iterator[AwsCloud]:
    monkeypatch.setattr(fault_injection, "POLL_S", 0.01)
    yield rented.cloud()
    rented.aws.ec2.experiments.roles = None


@pytest.fixture
def machine(rented: Rented, cloud: AwsCloud) -> Callable[..., str]:
    def made(name: str = "taken", **changes: object) -> str:
        cloud.launch(rented.request(name, **changes))
        token = f"{rented.deployment}-{name}"
        return next(item.instance_id for item in cloud.list() if item.token == token)

    return made


def test_the_machine_is_warned_as_any_that_is_taken_back(
    rented: Rented, cloud: AwsCloud, machine: Callable[..., str]
) -> None:
    resource_id = machine()
    result = cloud.interrupt(resource_id)
    assert isinstance(cloud, FaultInjector)
    assert result.request.startswith("FIS experiment ")
    assert result.notice_within_s == 300.0
    [notice] = until(cloud.notices)
    assert notice.instance_id == resource_id
    assert rented.actions(*VERBS) == [*VERBS], "and no template is left behind"
    templates = [item.body for item in rented.aws.ec2.seen if item.action == VERBS[0]]
    assert templates[0].pop("clientToken")
    shown = PAGE.read_text().partition("POST /experimentTemplates\n")[2].partition("\n```")[0]
    text = json.dumps(templates[0]).replace(resource_id.partition("/")[2], "i-0123456789abcdef0")
    assert json.loads(shown) == json.loads(text.replace(rented.deployment, "DEPLOYMENT"))


def test_what_fis_says_of_an_experiment_that_failed_is_told(
    rented: Rented, cloud: AwsCloud, machine: Callable[..., str]
) -> None:
    resource_id = machine()
    rented.aws.ec2.experiments.roles = {"arn:aws:iam::1:role/another"}
    with pytest.raises(RejectedError, match="failed: Unable to assume role"):
        cloud.interrupt(resource_id)
    assert rented.actions(*VERBS) == [*VERBS]
    rented.aws.ec2.experiments.roles = {
        f"arn:aws:iam::{ACCOUNT}:role/spotd-interrupt-{rented.deployment}"
    }
    cloud.interrupt(resource_id)


def test_a_right_that_is_missing_is_named(
    rented: Rented, cloud: AwsCloud, machine: Callable[..., str]
) -> None:
    rented.aws.ec2.faults.arm(Fault("denied", ("StartExperiment",)))
    with pytest.raises(AuthError, match="doctor --policy aws"):
        cloud.interrupt(machine())
    assert rented.actions("DeleteExperimentTemplate") == ["DeleteExperimentTemplate"]


def test_none_but_spot_machines_of_ours_are_taken(
    rented: Rented, cloud: AwsCloud, machine: Callable[..., str]
) -> None:
    resource_id = machine()
    plain = machine("plain", capacity_type=CapacityType.ON_DEMAND)
    stranger = Rented(rented.aws).cloud()
    for one, owner in (
        (plain, cloud),
        (resource_id, stranger),
        ("us-east-1/i-0", cloud),
        ("", cloud),
    ):
        with pytest.raises(RejectedError, match="is not a spot machine of this deployment"):
            owner.interrupt(one)
    assert rented.actions(*VERBS) == []
