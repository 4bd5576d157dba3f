"""What Google Cloud's tables of the configuration say of the account and of the store."""

from __future__ import annotations

import pytest

from providers.gcp.config import GcpFederate, GcpProvider


def federate(*clouds: str, audience: str = "") -> GcpFederate:
    return GcpFederate(
        kind="gcp",
        clouds=[*clouds],
        service_account="a@b.iam.gserviceaccount.com",
        pool="projects/1/locations/global/workloadIdentityPools/pool",
        audience=audience,
    )


def test_the_account_is_the_project() -> None:
    provider = GcpProvider(kind="gcp", project="lab", regions=["us-central1"])
    assert provider.policy_account([], []) == {"project": "lab"}
    assert provider.identity() == {"kind": "gcp", "project": "lab"}


@pytest.mark.parametrize(
    ("made", "missing"),
    [
        (federate("azure"), ["audience"]),
        (federate("aws", "azure"), ["audience"]),
        (federate("azure", audience="api://spotd"), []),
        (federate("aws"), []),
    ],
)
def test_azures_machines_need_an_audience(made: GcpFederate, missing: list[str]) -> None:
    assert [key for key, _, _ in made.find_problems()] == missing
