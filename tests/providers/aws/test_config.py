"""What AWS's tables of the configuration say of the account and of the store."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from providers.aws.config import AwsFederate, AwsLend, AwsProvider
from providers.azure.config import AzureFederate
from providers.gcp.config import GcpFederate, GcpLend

ROLE = "arn:aws:iam::123456789012:role/lend"
UUID = "00000000-0000-0000-0000-000000000000"
ENTRA = AzureFederate(
    kind="azure", clouds=["aws"], tenant=UUID, application=UUID, audience="api://spotd"
)
GOOGLE = GcpFederate(
    kind="gcp",
    clouds=["aws"],
    service_account="a@b.iam.gserviceaccount.com",
    pool="projects/1/locations/global/workloadIdentityPools/pool",
)


def test_the_account_has_the_roles_that_are_lent_and_the_audiences_that_are_proved() -> None:
    provider = AwsProvider(kind="aws", regions=["us-east-1"], queue="warnings")
    lends = [
        AwsLend(kind="aws", role=ROLE),
        AwsLend(kind="aws"),
        GcpLend(kind="gcp", service_account="a@b.iam.gserviceaccount.com"),
    ]
    assert provider.policy_account(lends, [ENTRA, GOOGLE]) == {
        "queue": "warnings",
        "lend": ROLE,
        "prove": "api://spotd",
    }, "Google takes a signed request, for which no right is needed"
    assert provider.policy_account([], []) == {"queue": "warnings", "lend": "", "prove": ""}


def test_what_its_issuer_needs_of_the_store() -> None:
    lend = AwsLend(kind="aws")
    assert lend.issuer_settings({"region": "eu-west-1", "sign_bodies": "true"}) == {
        "region": "eu-west-1"
    }
    assert lend.issuer_settings({}) == {"region": "us-east-1"}


def test_a_store_trusts_other_clouds_alone() -> None:
    with pytest.raises(ValidationError, match="'gcp' or 'azure'"):
        AwsFederate(kind="aws", clouds=["aws"], role=ROLE, audience="spotd")


def test_two_tables_are_one_account_by_their_profile() -> None:
    one = AwsProvider(kind="aws", regions=["us-east-1"], profile="a")
    other = AwsProvider(kind="aws", regions=["us-west-2"], profile="a", queue="q")
    assert one.identity() == other.identity() == {"kind": "aws", "profile": "a"}
    assert one.identity() != AwsProvider(kind="aws", regions=["us-east-1"]).identity()
