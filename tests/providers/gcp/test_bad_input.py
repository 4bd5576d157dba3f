"""See tests/providers/bad_input.py."""

from __future__ import annotations

import pytest

from providers.base import (
    AuthError,
    NoQuotaError,
    OfferRequest,
    RejectedError,
    UnpreparedError,
)
from tests.providers.bad_input import MISTAKES, Mistake, check
from tests.providers.gcp.conftest import Lab, request


def expired(lab: Lab, name: str) -> None:
    """The account's key was revoked: an adapter without a token requests a new one."""
    lab.standin.identity.revoked = True
    try:
        lab.cloud(timeout_s=10.0).launch(request(name))
    finally:
        lab.standin.identity.revoked = False


@pytest.mark.parametrize("what", MISTAKES)
def test_one_clear_message(lab: Lab, what: str) -> None:
    cloud = lab.cloud()
    name = f"spotd-{what.replace(' ', '-')}"
    if what == "no quota":
        lab.fault("no_quota", "instances.insert")
    if what == "no subnet":
        lab.gce.machines.subnetworks = set()
    image = "projects/lab/global/images/nothing"
    cases = {
        "wrong region": Mistake(
            UnpreparedError,
            r"Google Cloud has no region 'us-centrl1': see `gcloud compute regions list`",
            lambda: lab.cloud(regions=("us-centrl1",)).offers(OfferRequest()),
        ),
        "wrong type": Mistake(
            RejectedError,
            r"invalid: Invalid value for field 'resource\.machineType': '\S+/a3-highgpu-9g'\. "
            r"The referenced resource does not exist\.",
            lambda: cloud.launch(request(name, instance_type="a3-highgpu-9g")),
        ),
        "no subnet": Mistake(
            UnpreparedError,
            r"invalid: Invalid value for field 'resource\.networkInterfaces\[0\]\.subnetwork': "
            r"'\S+/subnetworks/spotd'\. The referenced subnetwork resource cannot be found\.",
            lambda: cloud.launch(request(name)),
        ),
        "expired credentials": Mistake(
            AuthError,
            r"authError: Request had invalid authentication credentials\.; check that `gcloud auth "
            r"application-default print-access-token` works as the user that runs spotd",
            lambda: expired(lab, name),
        ),
        "no quota": Mistake(
            NoQuotaError,
            r"QUOTA_EXCEEDED: Quota 'PREEMPTIBLE_NVIDIA_H100_GPUS' exceeded\.  Limit: 0\.0 in "
            r"region us-central1\.",
            lambda: cloud.launch(request(name)),
        ),
        "image gone": Mistake(
            UnpreparedError,
            rf"notFound: The resource '{image}' was not found",
            lambda: cloud.launch(request(name, image_id=image)),
        ),
    }
    check(cases[what], cloud)
