"""How object stores are reached, and by which machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from providers.stores.base import SECRET_OPTIONS
from spotd.base.section import Section, formed
from spotd.planner.core.shard_stores import StorePlace, place_of
from spotd.spec.quantities import Bytes, Duration, StoreUrl, Usd


def parse_options(value: Any) -> Any:
    """Options as text. Raises ValueError for a secret that stands in the file."""
    if not isinstance(value, dict):
        return value
    for key in SECRET_OPTIONS:
        if key in value:
            raise ValueError(
                f"{key} must not be in the file; use {key}_file, {key}_env or {key}_credential"
            )
    return {
        key: str(item).lower() if isinstance(item, bool) else str(item)
        for key, item in value.items()
    }


class LendSection(Section):
    """Credentials of one job's folder, made for machines that have no right there by themselves."""

    to: Literal["others", "all"] = Field(
        default="others",
        description="Only machines of other clouds, or also those of the same cloud",
    )
    lifetime: Duration | None = Field(
        default=None,
        description="Lifetime of credentials; default: the longest that the cloud allows",
    )


_ROLE = r"arn:aws[a-z-]*:iam::\d{12}:role/.+"
_ROLE_LIKE = "arn:aws:iam::123456789012:role/NAME"
_ACCOUNT = r"^[^@\s]+@[^@\s]+\.iam\.gserviceaccount\.com$"
_POOL = r"projects/\d+/locations/global/workloadIdentityPools/[a-z0-9-]{4,32}"
_POOL_LIKE = "projects/123456789012/locations/global/workloadIdentityPools/NAME"
_UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_UUID_LIKE = "00000000-0000-0000-0000-000000000000"


class AwsLend(LendSection):
    kind: Literal["aws"]
    role: Annotated[str, formed(f"({_ROLE})?", _ROLE_LIKE)] = Field(
        default="",
        description="Role to assume; without one, the user of the box's keys is federated",
    )
    profile: str = Field(
        default="", description="Profile of the box; default: the credentials that the SDK finds"
    )


class GcpLend(LendSection):
    kind: Literal["gcp"]
    service_account: str = Field(
        pattern=_ACCOUNT,
        description="Service account with access to the bucket; its limited tokens are leased",
    )
    credentials_file: Path | None = Field(
        default=None,
        description="Credentials of the box; default: those that Google's own tools use",
    )


class AzureLend(LendSection):
    """Temporary credentials for the storage account named in the options. The box signs in the way
    Azure's own tools do."""

    kind: Literal["azure"]


Lend = Annotated[AwsLend | GcpLend | AzureLend, Field(discriminator="kind")]


class AwsFederate(Section):
    """Machines of these clouds sign in to AWS with their own cloud's identity token, and assume a
    role that may use the bucket."""

    kind: Literal["aws"]
    clouds: list[Literal["gcp", "azure"]] = Field(min_length=1)
    role: Annotated[str, formed(_ROLE, _ROLE_LIKE)]
    audience: str = Field(min_length=1, description="Audience of the tokens that the role trusts")


class GcpFederate(Section):
    """Machines of these clouds sign in to Google Cloud with their own cloud's identity token, and
    impersonate a service account that may use the bucket."""

    kind: Literal["gcp"]
    clouds: list[Literal["aws", "azure"]] = Field(min_length=1)
    service_account: str = Field(pattern=_ACCOUNT, description="Service account to impersonate")
    pool: Annotated[str, formed(_POOL, _POOL_LIKE)] = Field(
        description="Workload identity pool with the providers spotd-aws and spotd-azure"
    )
    audience: str = Field(
        default="", description="Audience of the tokens of Azure's machines; those of AWS need none"
    )


class AzureFederate(Section):
    """Machines of these clouds sign in to Azure with their own cloud's identity token, as an
    application or managed identity of Entra."""

    kind: Literal["azure"]
    clouds: list[Literal["aws", "gcp"]] = Field(min_length=1)
    tenant: Annotated[str, formed(_UUID, _UUID_LIKE)]
    application: Annotated[str, formed(_UUID, _UUID_LIKE)] = Field(
        description="Client id of the application"
    )
    audience: Annotated[str, formed(r"\S+", "api://AzureADTokenExchange")] = (
        "api://AzureADTokenExchange"
    )


def _aws_if_unsaid(value: Any) -> Any:
    return {"kind": "aws", **value} if isinstance(value, dict) else value


Federate = Annotated[AwsFederate | GcpFederate | AzureFederate, Field(discriminator="kind")]


class DatasetSection(Section):
    """Data that jobs mount by name, as dataset://NAME, and that is copied to each region once."""

    url: StoreUrl = Field(description="Store that has the whole data set")
    copies: list[StoreUrl] = Field(
        default=[],
        description="Stores that it may be copied to, each for machines of its region; the region "
        "is set in [stores]",
    )
    max_usd: Usd = Field(description="Maximum cost of one copy to a region, in USD")
    size: Bytes | None = Field(
        default=None, description="Like 3TB; if set, placement includes the cost of copying it"
    )
    usd_per_gb: Annotated[float, Field(ge=0, le=1000)] | None = Field(
        default=None,
        description="Price per GB that leaves `url`; default: the list price of its cloud",
    )


class StagingSection(Section):
    """How the control box copies data sets ahead of jobs with spotd.stage_ahead."""

    usd_per_gb: Annotated[float, Field(ge=0, le=1000)] | None = Field(
        default=None,
        description="Price per GB that leaves the box, besides the store's egress; without it the "
        "box copies nothing",
    )
    bytes_per_s: Annotated[Bytes, Field(ge=100_000)] = Field(
        default=50_000_000, description="Maximum rate of all copies together, like 50MB"
    )


class StoreSection(Section):
    """How the stores below `url` are reached."""

    url: StoreUrl
    shared: bool = Field(
        default=False,
        description="A folder that every rented machine mounts at the same path",
    )
    cloud: str = Field(
        default="", description="Cloud of the store; default: from the URL, if it shows one"
    )
    region: str = Field(
        default="", description="Region of the store; default: the option of that name"
    )
    zone: str = Field(
        default="", description="Zone of a folder that only machines of that zone can mount"
    )
    shards: bool = Field(
        default=False,
        description="Stores checkpoint shards of machines in its cloud and region",
    )
    options: Annotated[dict[str, str], BeforeValidator(parse_options)] = Field(default={})
    lend: Lend | None = None
    federate: Annotated[Federate | None, BeforeValidator(_aws_if_unsaid)] = None

    @property
    def place(self) -> StorePlace:
        """Return the configured place of the store."""
        return place_of(self.url, self.options, self.cloud, self.region, self.zone)
