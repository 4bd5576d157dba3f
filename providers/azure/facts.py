"""Facts of Azure: the row of this cloud in the table of clouds."""

from __future__ import annotations

from providers.cloud_facts import (
    AccountOption,
    AccountSetup,
    BillFacts,
    Cloud,
    IdentityFacts,
    StoreFacts,
)

_UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"

FACTS = Cloud(
    name="azure",
    invoice_name="Microsoft",
    colour="#009e73",
    adapter="providers.azure.cloud:AzureCloud",
    section="providers.azure.config:AzureProvider",
    node_role_key="node_identity",
    sdk="azure.mgmt.compute",
    smallest=("Standard_B2s", "Standard_D2s_v5", "Standard_F2s_v2"),
    store=StoreFacts(
        scheme="az",
        container="container",
        host=".core.windows.net",
        adapter="providers.stores.azure:open_azure",
        settings="providers.stores.settings:read_azure",
        issuer="providers.azure.credential_leases:AzureCredentialIssuer",
        lend="providers.azure.config:AzureLend",
        federate="providers.azure.config:AzureFederate",
        read_right="the role Storage Blob Data Reader",
        write_right="the role Storage Blob Data Contributor",
        # AWS: the issuer that `aws iam enable-outbound-web-identity-federation` returned.
        trusts={"aws": ("ISSUER", "ROLE-ARN"), "gcp": ("UNIQUE-ID",)},
        required_options={"account": "the storage account"},
    ),
    identity=IdentityFacts(
        proof="providers.azure.identity:identity_token",
        arguments={"TENANT": _UUID, "OBJECT-ID": _UUID},
        modules=("providers.azure.identity",),
    ),
    setup=AccountSetup(
        region_pattern=r"[a-z]+[0-9]*",
        region_example="eastus",
        retry="after `az login`, or with AZURE_CLIENT_ID and others",
        account=(
            AccountOption(
                name="subscription", key="subscription_id", metavar="ID", help="Subscription"
            ),
            AccountOption(
                name="group",
                key="resource_group",
                metavar="NAME",
                help="Resource group of the deployment",
            ),
        ),
        profile=False,
        profile_help="from `az login`",
    ),
    bill=BillFacts(
        export="providers.azure.bill:EXPORT",
        option="--azure",
        help="Cost details export, CSV or CSV.gz.",
    ),
    imitated=True,
)
