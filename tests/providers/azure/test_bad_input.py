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
from tests.clouds.azure.serving import StandIn
from tests.clouds.faults import Fault
from tests.providers.azure.rig import again, provider, request
from tests.providers.bad_input import MISTAKES, Mistake, check


@pytest.mark.parametrize("what", MISTAKES)
def test_one_clear_message(azure: StandIn, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = provider(azure)
    refused = {"expired credentials": "expired", "no quota": "no_quota"}.get(what)
    if refused:
        azure.arm.faults.arm(Fault(refused, ("PUT virtualMachines",)))
    if what == "no subnet":
        monkeypatch.setattr(azure.arm, "networks", set())
    cases = {
        "wrong region": Mistake(
            UnpreparedError,
            r"Azure has no region 'eastsu' that this subscription may use: see `az account "
            r"list-locations -o table`",
            lambda: provider(azure, regions=("eastsu",)).offers(OfferRequest()),
        ),
        "wrong type": Mistake(
            RejectedError,
            r"InvalidParameter: The value Standard_ND97 provided for the VM size is not valid\.",
            lambda: cloud.launch(request("own-t", instance_type="Standard_ND97")),
        ),
        "no subnet": Mistake(
            UnpreparedError,
            r"InvalidResourceReference: Resource /\S+/virtualNetworks/spotd-eastus/subnets/nodes "
            r"referenced by resource was not found\.",
            lambda: cloud.launch(request("own-n")),
        ),
        "expired credentials": Mistake(
            AuthError,
            r"no credentials for Azure: \(ExpiredAuthenticationToken\) The access token has "
            r"expired\.(?s:.*); check that `az account get-access-token` works as the user that "
            r"runs spotd",
            lambda: cloud.launch(request("own-e")),
        ),
        "no quota": Mistake(
            NoQuotaError,
            r"OperationNotAllowed: Operation could not be completed as it results in exceeding "
            r"approved LowPriorityCores quota\. .* Location: eastus, Current Limit: 0, .*",
            lambda: cloud.launch(request("own-q")),
        ),
        "image gone": Mistake(
            UnpreparedError,
            r"PlatformImageNotFound: \('canonical', 'nothing', '1', 'latest'\) was not found\.",
            lambda: cloud.launch(request("own-i", image_id="canonical:nothing:1:latest")),
        ),
    }
    check(cases[what], again(cloud, azure))
