"""The readiness checks for Google Cloud, against the stand-in."""

from __future__ import annotations

from typing import Any

import pytest

from providers.base import CapacityType
from providers.gcp.readiness import limit_of
from providers.readiness import CapacityNeed, Finding, Grade
from tests.providers.gcp.conftest import Lab

REGION = "us-central1"
SPOT, PLAIN = CapacityType.SPOT, CapacityType.ON_DEMAND
A3 = CapacityNeed(REGION, "us-central1-a", "a3-highgpu-8g", SPOT, 2, 208.0, "H100", 8, "llama")
PREEMPTIBLE = "PREEMPTIBLE-NVIDIA-H100-GPUS-per-project-region"


def examined(lab: Lab, *needs: CapacityNeed, **settings: Any) -> list[Finding]:
    return [*lab.cloud(regions=(REGION,), **settings).check_readiness(needs)]


def one(found: list[Finding], check: str) -> Finding:
    [wanted] = [finding for finding in found if finding.check == check]
    return wanted


def test_a_project_that_is_ready(lab: Lab) -> None:
    result = examined(lab, A3)
    assert {finding.grade for finding in result} == {Grade.OK}
    checks = {"credentials", "clock", "permissions", "quota", "image", "network"}
    assert {finding.check for finding in result} == checks
    who = f"spotd@lab.iam.gserviceaccount.com, in project {lab.name}"
    assert one(result, "credentials").text == who
    assert "not tried: " in one(result, "permissions").text
    assert one(result, "quota").text == (
        f"{PREEMPTIBLE}: 64 GPUs; 16 are needed (2 x a3-highgpu-8g for llama)"
    )
    assert one(result, "network").text == "subnetwork spotd; SSH from 203.0.113.7/32"
    changing = [call.method for call in lab.gce.calls if call.line.startswith(("PUT", "DELETE"))]
    posted = {call.method for call in lab.gce.calls if call.line.startswith("POST")}
    assert (changing, posted) == ([], {"cloudresourcemanager.projects.testIamPermissions"})


def test_a_right_that_is_missing_is_named(lab: Lab) -> None:
    lab.gce.facts.denied = {"compute.advice.capacityHistory"}
    result = one(examined(lab, A3), "permissions")
    assert result.grade is Grade.FAIL
    assert "missing: compute.advice.capacityHistory;" in result.text
    assert "spotctl doctor --policy gcp" in result.fix
    assert "gcloud services enable compute.googleapis.com" in result.fix


def test_a_quota_that_is_too_small_says_how_to_raise_it(lab: Lab) -> None:
    lab.gce.facts.limits[PREEMPTIBLE, REGION] = 8
    result = one(examined(lab, A3), "quota")
    assert (result.grade, result.serves) == (Grade.FAIL, (A3,))
    assert f"--quota-id={PREEMPTIBLE} --preferred-value=16" in result.fix
    assert f"--dimensions=region={REGION} --project={lab.name}" in result.fix
    lab.gce.facts.limits[PREEMPTIBLE, REGION] = 0
    result = one(examined(lab, A3), "quota")
    assert (result.serves, result.lacks) == ((), (A3,))


def test_machines_on_demand_count_in_their_region_and_in_all_together(lab: Lab) -> None:
    lab.gce.facts.limits["GPUS-ALL-REGIONS-per-project", ""] = 0
    plain = CapacityNeed(**(vars(A3) | {"capacity_type": PLAIN, "count": 1}))
    result = [finding for finding in examined(lab, plain) if finding.check == "quota"]
    graded = {finding.text.partition(":")[0]: finding.grade for finding in result}
    assert graded == {
        "GPUS-PER-GPU-FAMILY-per-project-region": Grade.OK,
        "GPUS-ALL-REGIONS-per-project": Grade.FAIL,
    }


def test_a_quota_that_nobody_knows_is_no_verdict(lab: Lab) -> None:
    lab.gce.facts.unknown = {PREEMPTIBLE}
    result = one(examined(lab, A3), "quota")
    assert (result.grade, result.serves) == (Grade.WARN, ())
    n4 = CapacityNeed(REGION, "us-central1-a", "n4-standard-4", SPOT, cpus=4)
    result = one(examined(lab, n4), "quota")
    assert result.grade is Grade.WARN
    assert "does not know the quota of n4-standard-4" in result.text


@pytest.mark.parametrize(
    ("rows", "limit"),
    [
        ([({}, "1"), ({"region": "a"}, "2"), ({"region": "b"}, "3")], 2.0),
        ([({}, "1"), ({"region": "b"}, "3")], 1.0),
        ([({"region": "a", "gpu_family": "X"}, "5"), ({"gpu_family": "X"}, "1")], 5.0),
        ([({"region": "a", "gpu_family": "Y"}, "5")], None),
        ([({"region": "a"}, "-1")], -1.0),
        ([], None),
    ],
)
def test_the_limit_that_names_most_holds(
    rows: list[tuple[dict[str, str], str]], limit: float | None
) -> None:
    infos = [{"dimensions": named, "details": {"value": value}} for named, value in rows]
    assert limit_of({"dimensionsInfos": infos}, "a", "X") == limit


def test_an_image_that_is_gone_or_of_arm(lab: Lab) -> None:
    gone = one(examined(lab, image="projects/p/global/images/gone"), "image")
    assert (gone.grade, "was not found" in gone.text) == (Grade.FAIL, True)
    lab.gce.facts.images["arm"] = "ARM64"
    result = one(examined(lab, image="projects/p/global/images/family/arm"), "image")
    assert (result.grade, "ARM64" in result.text) == (Grade.FAIL, True)


def test_a_network_that_is_missing_closed_or_open_to_all(lab: Lab) -> None:
    result = one(examined(lab, subnetwork="nobodys"), "network")
    assert result.text == "us-central1 has no subnetwork nobodys"
    assert "spotctl init gcp --network public --region us-central1" in result.fix
    lab.gce.facts.sources = []
    assert "allows SSH from nowhere" in one(examined(lab), "network").text
    lab.gce.facts.sources = ["0.0.0.0/0"]
    assert one(examined(lab), "network").grade is Grade.WARN
    lab.gce.facts.sources = ["10.0.0.5/32"]
    reported = [f.text for f in examined(lab, network="private") if f.grade is Grade.FAIL]
    assert reported == ["machines of spotd reach no store: no private Google access"]


def test_whoever_is_nobody_is_asked_nothing_else(lab: Lab) -> None:
    lab.standin.identity.revoked = True
    result = examined(lab, A3)
    assert [(finding.check, finding.grade) for finding in result] == [("credentials", Grade.FAIL)]
    assert "gcloud auth application-default" in result[0].fix
