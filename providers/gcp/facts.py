"""Facts of Google Cloud: the row of this cloud in the table of clouds."""

from __future__ import annotations

from providers.cloud_facts import (
    AccountOption,
    AccountSetup,
    BillFacts,
    Cloud,
    IdentityFacts,
    SpotPrior,
    StoreFacts,
)

FACTS = Cloud(
    name="gcp",
    invoice_name="Google Cloud",
    colour="#56b4e9",
    adapter="providers.gcp.cloud:GcpCloud",
    section="providers.gcp.config:GcpProvider",
    node_role_key="node_service_account",
    sdk="google.cloud.compute_v1",
    smallest=("e2-small", "e2-medium", "e2-standard-2", "e2-standard-4"),
    store=StoreFacts(
        scheme="gs",
        container="bucket",
        host=".googleapis.com",
        adapter="providers.stores.gcs:open_gcs",
        settings="providers.stores.settings:read_gcs",
        issuer="providers.gcp.credential_leases:GcpCredentialIssuer",
        lend="providers.gcp.config:GcpLend",
        federate="providers.gcp.config:GcpFederate",
        read_right="roles/storage.objectViewer",
        write_right="roles/storage.objectUser",
        # Azure: tenant, object id of the machines' identity, and ID URI of an application.
        trusts={"aws": ("ACCOUNT-ID", "ROLE"), "azure": ("TENANT", "OBJECT-ID", "AUDIENCE")},
    ),
    identity=IdentityFacts(
        proof="providers.gcp.identity:identity_token",
        arguments={"UNIQUE-ID": r"[0-9]{6,30}"},
        modules=("providers.gcp.identity",),
    ),
    setup=AccountSetup(
        region_pattern=r"[a-z]+(-[a-z]+)+[0-9]+",
        region_example="us-central1",
        retry="with --profile FILE",
        account=(AccountOption(name="project", key="project", metavar="ID", help="Project"),),
        profile_help="a credentials file",
    ),
    bill=BillFacts(
        export="providers.gcp.bill:EXPORT",
        option="--gcp",
        help="Detailed billing export, as CSV or CSV.gz.",
    ),
    # The traces have 0.1 preemptions an hour.
    spot_prior=SpotPrior(
        8.0, "Bamboo's traces of A100s, and the 2 to 8 h that policies are compared at"
    ),
    imitated=True,
)
