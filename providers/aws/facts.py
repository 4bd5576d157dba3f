"""Facts of AWS: the row of this cloud in the table of clouds."""

from __future__ import annotations

from providers.cloud_facts import (
    AccountSetup,
    BillFacts,
    Cloud,
    IdentityFacts,
    SpotPrior,
    StoreFacts,
)

_S3_NOTE = (
    "machines of this network reach only S3 of their own region, by a gateway endpoint that "
    "costs nothing"
)
_NAT_NOTE = (
    "everything else that jobs need (package indexes, image registries, stores in other regions or "
    "clouds) requires a NAT gateway, which AWS bills by the hour and by the byte and which is not "
    "created here; or other endpoints, or an image that contains it"
)

FACTS = Cloud(
    name="aws",
    invoice_name="AWS",
    colour="#e69f00",
    adapter="providers.aws.cloud:AwsCloud",
    section="providers.aws.config:AwsProvider",
    node_role_key="node_role",
    sdk="botocore",
    smallest=("t3.small", "c5.large", "c5.xlarge", "m5.large"),
    store=StoreFacts(
        scheme="s3",
        container="bucket",
        host=".amazonaws.com",
        adapter="providers.stores.s3:open_s3",
        settings="providers.stores.settings:read_s3",
        issuer="providers.aws.credential_leases:AwsCredentialIssuer",
        lend="providers.aws.config:AwsLend",
        federate="providers.aws.config:AwsFederate",
        read_right="s3:ListBucket and s3:GetObject",
        write_right="s3:ListBucket, s3:GetObject, s3:PutObject and s3:DeleteObject",
        # AUDIENCE as in [stores.NAME.federate].
        trusts={"gcp": ("UNIQUE-ID", "AUDIENCE"), "azure": ("TENANT", "OBJECT-ID", "AUDIENCE")},
        federate_default=True,
        credential_process=True,
    ),
    identity=IdentityFacts(
        proof="providers.aws.identity:identity_token",
        arguments={
            "ISSUER": r"https://[a-z0-9.-]+",
            "ROLE-ARN": r"arn:aws[a-z-]*:iam::[0-9]{12}:role/[\w+=,.@/-]+",
            "ACCOUNT-ID": r"[0-9]{12}",
            "ROLE": r"[\w+=.@-]{1,64}",
        },
        signed="providers.aws.identity:signed_caller_identity",
        signed_type="urn:ietf:params:aws:token-type:aws4_request",
        modules=("providers.aws.identity", "providers.aws.signature"),
    ),
    setup=AccountSetup(
        region_pattern=r"[a-z]{2,}(-[a-z]+)+-[0-9]+",
        region_example="us-east-1",
        retry="with --profile NAME",
        queue=True,
        limits_launches=True,
        private_notes=(
            _S3_NOTE,
            _NAT_NOTE,
        ),
    ),
    bill=BillFacts(
        export="providers.aws.bill:EXPORT",
        option="--aws-cur",
        help="Cost and Usage Report, CSV or CSV.gz.",
    ),
    # 0.1 to 0.9 preemptions an hour for one machine; here the middle.
    spot_prior=SpotPrior(4.0, "SkyPilot's traces of V100s, 2022 to 2025"),
    imitated=True,
)
