"""See tests/providers/bad_input.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from providers.base import (
    AuthError,
    NoQuotaError,
    OfferRequest,
    RejectedError,
    UnpreparedError,
)
from tests.clouds.faults import Fault
from tests.providers.aws.conftest import Rented
from tests.providers.bad_input import MISTAKES, Mistake, check

BARE = "eu-central-1"  # a region of the stand-in where `spotctl init aws` has not been
NOBODY = "http://127.0.0.1:9"  # where a region would be that there is not


@pytest.mark.parametrize("what", MISTAKES)
def test_one_clear_message(
    rented: Rented, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = rented.cloud()
    request = rented.request(what.replace(" ", "-"))
    refused = {"expired credentials": "expired", "no quota": "no_quota"}.get(what)
    if refused:
        rented.aws.ec2.faults.arm(Fault(refused, ("RunInstances",)))
    cases = {
        "wrong region": Mistake(
            UnpreparedError,
            r"AWS has no region 'us-est-1' that can be reached: see `aws ec2 describe-regions`",
            lambda: rented.cloud(regions=("us-est-1",), profile="away").offers(OfferRequest()),
        ),
        "wrong type": Mistake(
            RejectedError,
            r"InvalidParameterValue: us-east-1: Invalid value 'p5\.49xlarge' for InstanceType\.",
            lambda: cloud.launch(rented.request("type", instance_type="p5.49xlarge")),
        ),
        "no subnet": Mistake(
            UnpreparedError,
            r"eu-central-1a has no subnet with the tag spotd-network=public \(no zone of "
            r"eu-central-1 has one\): run `spotctl init aws --network public --region "
            r"eu-central-1`",
            lambda: cloud.launch(rented.request("net", region=BARE, zone=f"{BARE}a")),
        ),
        "expired credentials": Mistake(
            AuthError,
            r"RequestExpired: us-east-1: Request has expired\.; check that `aws sts "
            r"get-caller-identity` works as the user that runs spotd",
            lambda: cloud.launch(request),
        ),
        "no quota": Mistake(
            NoQuotaError,
            r"VcpuLimitExceeded: us-east-1: You have requested more vCPU capacity than your "
            r"current vCPU limit of 0 allows .*",
            lambda: cloud.launch(request),
        ),
        "image gone": Mistake(
            UnpreparedError,
            r"us-east-1 has no image ami-00000000000000000 that this account may use: name one "
            r"that it has, by `image` of the provider or image_id of the job(?s: .*)?",
            lambda: cloud.launch(rented.request("image", image_id="ami-00000000000000000")),
        ),
    }
    if what == "wrong region":
        cloud.list()  # its client is there, whatever the SDK's configuration says by then
        (tmp_path / "config").write_text(f"[profile away]\nendpoint_url = {NOBODY}\n")
        keys = "[away]\naws_access_key_id = test\naws_secret_access_key = test\n"
        (tmp_path / "credentials").write_text(keys)
        with monkeypatch.context() as patch:
            patch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
            patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
            check(cases[what], cloud)
    else:
        check(cases[what], cloud)
