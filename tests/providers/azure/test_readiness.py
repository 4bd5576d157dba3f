"""The readiness checks for Azure, against the stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from providers.azure.cloud import AzureCloud
from providers.azure.readiness import allows
from providers.base import CapacityType
from providers.readiness import CapacityNeed, Finding, Grade
from tests.clouds.azure.catalog import A100, H100
from tests.clouds.azure.facts import ALL, Facts
from tests.clouds.azure.serving import StandIn
from tests.providers.azure.rig import provider

SPOT, PLAIN = CapacityType.SPOT, CapacityType.ON_DEMAND
ND = CapacityNeed("eastus", "eastus-1", H100, SPOT, 2, 96.0, "H100", 8, "llama")


@pytest.fixture
def facts(azure: StandIn) -> Iterator[Facts]:
    known = dict(vars(azure.arm.facts))
    yield azure.arm.facts
    vars(azure.arm.facts).update(known)
    azure.arm.facts.limits, azure.arm.facts.permissions = {}, [dict(ALL)]
    azure.arm.networks = None


def examined(azure: StandIn, *needs: CapacityNeed, **settings: Any) -> list[Finding]:
    return [*provider(azure, **settings).check_readiness(needs)]


def one(found: list[Finding], check: str) -> Finding:
    [wanted] = [finding for finding in found if finding.check == check]
    return wanted


def test_a_subscription_that_is_ready(azure: StandIn, facts: Facts) -> None:
    result = examined(azure, ND)
    assert [f for f in result if f.grade is not Grade.OK] == []
    checks = {"credentials", "clock", "permissions", "quota", "image", "network"}
    assert {finding.check for finding in result} == checks
    assert one(result, "credentials").text == "subscription The Lab is Enabled"
    assert one(result, "image").text == "microsoft-dsvm:ubuntu-hpc:2204:22.04.2026110401, x64"
    assert one(result, "quota").text == (
        f"Quota of lowPriorityCores (0 in use): 1000 vCPUs; 192 are needed (2 x {H100} for llama)"
    )
    assert one(result, "network").text == "spotd-eastus/nodes; SSH from 203.0.113.7/32"
    assert {call.method for call in azure.arm.calls if "token" not in call.call} == {"GET"}


def test_a_right_that_is_missing_is_named(azure: StandIn, facts: Facts) -> None:
    facts.permissions = [ALL | {"notActions": ["Microsoft.Compute/virtualMachines/delete"]}]
    reported = [f for f in examined(azure, ND) if f.check == "permissions"]
    assert [f.grade for f in reported] == [Grade.FAIL, Grade.OK], (
        "the subscription's roles need it not"
    )
    assert reported[0].text.startswith("missing: Microsoft.Compute/virtualMachines/delete; ")
    assert "spotctl doctor --policy azure" in reported[0].fix


@pytest.mark.parametrize(
    ("roles", "allowed"),
    [
        ([], False),
        ([(["*"], [])], True),
        ([(["Microsoft.Compute/*"], [])], True),
        ([(["microsoft.compute/virtualmachines/WRITE"], [])], True),
        ([(["Microsoft.Compute/*/read"], [])], False),
        ([(["*"], ["Microsoft.Compute/*/write"])], False),
        ([(["*"], ["*/write"]), (["Microsoft.Compute/virtualMachines/*"], [])], True),
    ],
)
def test_what_roles_allow(roles: list[tuple[list[str], list[str]]], allowed: bool) -> None:
    rows = [{"actions": actions, "notActions": less} for actions, less in roles]
    assert allows(rows, "Microsoft.Compute/virtualMachines/write") is allowed


def test_spot_machines_of_all_sizes_share_a_quota(azure: StandIn, facts: Facts) -> None:
    facts.limits["lowPriorityCores"] = 96
    other = CapacityNeed("eastus", "eastus-1", A100, SPOT, 1, 24.0, "A100-80GB", 1)
    result = one(examined(azure, ND, other), "quota")
    assert (result.grade, result.serves) == (Grade.FAIL, (ND, other))
    assert "--limit-object value=192" in result.fix
    assert result.fix.startswith("az quota update --resource-name 'lowPriorityCores'")
    facts.limits["lowPriorityCores"] = 24
    result = one(examined(azure, ND, other), "quota")
    assert (result.serves, result.lacks) == ((other,), (ND,))


def test_others_count_in_the_region_and_in_their_family(azure: StandIn, facts: Facts) -> None:
    facts.limits["standardNDSH100v5Family"] = 0
    plain = CapacityNeed(**(vars(ND) | {"capacity_type": PLAIN, "count": 1}))
    reported = [f for f in examined(azure, plain) if f.check == "quota"]
    assert [f.grade for f in reported] == [Grade.OK, Grade.FAIL]
    assert reported[1].text.startswith("Quota of standardNDSH100v5Family (0 in use): 0 vCPUs;")


def test_an_image_that_is_gone_or_of_arm(azure: StandIn, facts: Facts) -> None:
    gone = one(examined(azure, image="a:b:c:latest"), "image")
    assert (gone.grade, gone.text) == (Grade.FAIL, "eastus has no image a:b:c:latest")
    facts.architecture = "Arm64"
    assert one(examined(azure), "image").grade is Grade.FAIL


def test_a_network_that_is_missing_closed_or_open_to_all(azure: StandIn, facts: Facts) -> None:
    azure.arm.networks = set()
    result = one(examined(azure), "network")
    assert result.grade is Grade.FAIL
    assert result.text.endswith("/virtualNetworks/spotd-eastus/subnets/nodes")
    assert "spotctl init azure --network public --region eastus" in result.fix
    azure.arm.networks = None
    facts.sources = []
    assert "allows SSH from nowhere" in one(examined(azure), "network").text
    facts.sources = ["Internet"]
    assert one(examined(azure), "network").grade is Grade.WARN


def test_a_subscription_that_is_held_is_told_first(azure: StandIn, facts: Facts) -> None:
    facts.state = "Warned"
    result = examined(azure, ND)
    assert {finding.check for finding in result} == {"credentials", "clock"}
    assert result[0].text == "subscription The Lab is Warned"


def test_whoever_is_nobody_is_asked_nothing_else(
    azure: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_CLIENT_SECRET", "wrong")
    cloud = AzureCloud("azure", "d0", regions=("eastus",), **azure.settings)
    result = [*cloud.check_readiness([ND])]
    assert [(finding.check, finding.grade) for finding in result] == [("credentials", Grade.FAIL)]
    assert "az account get-access-token" in result[0].fix
