"""From the configuration to the adapter, which makes no call until it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from providers.azure.cloud import AzureCloud
from providers.azure.config import AzureProvider
from providers.azure.settings import PATTERNS
from providers.catalogs.prices import price_file
from spotd.config.provider_registry import build_provider
from tests.fixtures.waiting import LIMIT_S

LEAST = {"kind": "azure", "subscription_id": "s", "resource_group": "g", "regions": ["eastus"]}


def built(**more: object) -> AzureCloud:
    section = AzureProvider.model_validate({**LEAST, **more})
    settings = section.model_dump(exclude={"kind"}, exclude_none=True)
    made = build_provider("azure", "az", "d0", settings)
    assert isinstance(made, AzureCloud)
    return made


def test_the_least_that_has_to_be_said() -> None:
    cloud = built()
    assert (cloud.name, cloud._region_setup.public, cloud._market._patterns) == (
        "az",
        True,
        PATTERNS,
    )
    assert cloud._region_setup.image == "microsoft-dsvm:ubuntu-hpc:2204:latest"


def test_all_that_can_be_said() -> None:
    cloud = built(
        instance_types=["Standard_F*"],
        image="/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/images/i",
        network="jump",
        node_identity="/subscriptions/s/x",
        endpoint="https://arm.example/",
        authority="https://login.example",
        prices_endpoint="https://prices.example/",
    )
    assert not cloud._region_setup.public
    assert cloud._region_setup.identity == "/subscriptions/s/x"
    assert cloud._clients._endpoint == "https://arm.example"
    assert cloud._clients._prices_endpoint == "https://prices.example"


@pytest.mark.parametrize(
    "wrong",
    [
        {"image": "ubuntu"},
        {"image": "a:b:c"},
        {"image": "a:b:c:d:e"},
        {"network": "secret"},
        {"regions": []},
        {"instance_types": []},
        {"client_secret": "x"},
    ],
)
def test_what_is_no_setting(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        built(**wrong)


def test_the_sdk_is_imported_with_the_first_call() -> None:
    script = (
        "import sys; from providers.azure.cloud import AzureCloud; "
        "AzureCloud('az', 'd0', subscription_id='s', resource_group='g', regions=('eastus',)); "
        "print([name for name in sys.modules if name.split('.')[0] in ('azure', 'msal', 'boto3')])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    assert ran.stdout.strip() == "[]"


def test_dated_prices() -> None:
    file = price_file("azure")
    prices = file.on_demand["Standard_ND96isr_H100_v5"]
    assert (prices["eastus"], prices["southafricanorth"]) == (98_320_000, 168_670_000)
    assert len(prices) == 22
    assert file.dated == "2026-06-18"
