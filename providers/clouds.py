"""The clouds that spotd knows: one row of facts for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

CloudName = Literal["aws", "gcp", "azure"]


@dataclass(frozen=True)
class Cloud:
    """Facts of one cloud. `adapter` and `issuer` are "module:factory" and imported when used."""

    name: CloudName  # also of the notice watcher that its machines run
    invoice_name: str  # as its invoices call it (the FOCUS column ProviderName)
    scheme: str  # of its object store's URLs
    node_role_key: str  # the configuration key of the identity that its machines have
    adapter: str  # makes the provider, of (name, deployment, **settings)
    issuer: str  # issues credentials of its object stores, of (**settings)
    sdk: str  # the package without which the adapter cannot reach the cloud
    colour: str  # in plots: from Okabe and Ito's palette for colour-blind readers


CLOUDS: Mapping[str, Cloud] = {
    cloud.name: cloud
    for cloud in (
        Cloud(
            name="aws",
            invoice_name="AWS",
            scheme="s3",
            node_role_key="node_role",
            adapter="providers.aws.cloud:AwsCloud",
            issuer="providers.aws.credential_leases:AwsCredentialIssuer",
            sdk="botocore",
            colour="#e69f00",
        ),
        Cloud(
            name="gcp",
            invoice_name="Google Cloud",
            scheme="gs",
            node_role_key="node_service_account",
            adapter="providers.gcp.cloud:GcpCloud",
            issuer="providers.gcp.credential_leases:GcpCredentialIssuer",
            sdk="google.cloud.compute_v1",
            colour="#56b4e9",
        ),
        Cloud(
            name="azure",
            invoice_name="Microsoft",
            scheme="az",
            node_role_key="node_identity",
            adapter="providers.azure.cloud:AzureCloud",
            issuer="providers.azure.credential_leases:AzureCredentialIssuer",
            sdk="azure.mgmt.compute",
            colour="#009e73",
        ),
    )
}
CLOUD_OF_SCHEME: Mapping[str, Cloud] = {cloud.scheme: cloud for cloud in CLOUDS.values()}
