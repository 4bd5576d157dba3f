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
                f"{key} must not stand in the file; use {key}_file, {key}_env or {key}_credential"
            )
    return {
        key: str(item).lower() if isinstance(item, bool) else str(item)
        for key, item in value.items()
    }


class LendSection(Section):
    """Credentials of one job's folder, made for machines that have no right there by themselves."""

    to: Literal["others", "all"] = Field(
        default="others", description="Machines of other clouds alone, or that cloud's own too"
    )
    lifetime: Duration | None = Field(
        default=None, description="Default: the longest that the cloud allows"
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
        description="That is assumed; without one, the user whose keys the box has is federated",
    )
    profile: str = Field(default="", description="Of the box; default: what the SDK finds")


class GcpLend(LendSection):
    kind: Literal["gcp"]
    service_account: str = Field(
        pattern=_ACCOUNT,
        description="Whose tokens are limited and lent: it may use the bucket",
    )
    credentials_file: Path | None = Field(
        default=None, description="Of the box; default: what Google's own tools find"
    )


class AzureLend(LendSection):
    """Credentials of the storage account in the options; the box signs as Azure's own tools find
    it."""

    kind: Literal["azure"]


Lend = Annotated[AwsLend | GcpLend | AzureLend, Field(discriminator="kind")]


class AwsFederate(Section):
    """Machines of these clouds show who they are, and are given a role of the store's own."""

    kind: Literal["aws"]
    clouds: list[Literal["gcp", "azure"]] = Field(min_length=1)
    role: Annotated[str, formed(_ROLE, _ROLE_LIKE)]
    audience: str = Field(min_length=1, description="That the role trusts their tokens for")


class GcpFederate(Section):
    """As above: they are given tokens of a service account that may use the bucket."""

    kind: Literal["gcp"]
    clouds: list[Literal["aws", "azure"]] = Field(min_length=1)
    service_account: str = Field(pattern=_ACCOUNT, description="That is impersonated")
    pool: Annotated[str, formed(_POOL, _POOL_LIKE)] = Field(
        description="Of workload identities: its providers are called spotd-aws and spotd-azure"
    )
    audience: str = Field(
        default="", description="That machines of Azure have a token for; those of AWS need none"
    )


class AzureFederate(Section):
    """As above: they are given tokens of an application, or of an identity, of Entra."""

    kind: Literal["azure"]
    clouds: list[Literal["aws", "gcp"]] = Field(min_length=1)
    tenant: Annotated[str, formed(_UUID, _UUID_LIKE)]
    application: Annotated[str, formed(_UUID, _UUID_LIKE)] = Field(description="Its client id")
    audience: Annotated[str, formed(r"\S+", "api://AzureADTokenExchange")] = (
        "api://AzureADTokenExchange"
    )


def _aws_if_unsaid(value: Any) -> Any:
    return {"kind": "aws", **value} if isinstance(value, dict) else value


Federate = Annotated[AwsFederate | GcpFederate | AzureFederate, Field(discriminator="kind")]


class DatasetSection(Section):
    """Data that jobs mount by name, as dataset://NAME, and that is brought to each region once."""

    url: StoreUrl = Field(description="Where it is whole")
    copies: list[StoreUrl] = Field(
        default=[],
        description="Where it may be brought to, each for machines of its region: below [stores] "
        "that say where they are",
    )
    max_usd: Usd = Field(description="For one way to a region; micro-USD once read")
    size: Bytes | None = Field(
        default=None, description="Like 3TB: then its way counts in where a job that wants it runs"
    )
    usd_per_gb: Annotated[float, Field(ge=0, le=1000)] | None = Field(
        default=None, description="That leaves `url`; default: the list price of its cloud"
    )


class StagingSection(Section):
    """How the control box brings data sets ahead of jobs that ask for it (spotd.stage_ahead)."""

    usd_per_gb: Annotated[float, Field(ge=0, le=1000)] | None = Field(
        default=None,
        description="That leaves the box, beside what leaves the data's store; without it the box "
        "brings nothing",
    )
    bytes_per_s: Annotated[Bytes, Field(ge=100_000)] = Field(
        default=50_000_000, description="At most, like 50MB, over all that it brings"
    )


class StoreSection(Section):
    """How the stores below `url` are reached."""

    url: StoreUrl
    shared: bool = Field(
        default=False,
        description="Of a folder: every machine that is rented has it mounted, at the same path",
    )
    cloud: str = Field(
        default="", description="Whose machines are beside it; default: by the URL, where that says"
    )
    region: str = Field(default="", description="Default: the option of that name")
    zone: str = Field(
        default="", description="Of a folder that machines of one zone alone can mount"
    )
    shards: bool = Field(
        default=False,
        description="Takes the shards of checkpoints of machines of its cloud and region",
    )
    options: Annotated[dict[str, str], BeforeValidator(parse_options)] = Field(default={})
    lend: Lend | None = None
    federate: Annotated[Federate | None, BeforeValidator(_aws_if_unsaid)] = None

    @property
    def place(self) -> StorePlace:
        """Return the configured place of the store."""
        return place_of(self.url, self.options, self.cloud, self.region, self.zone)
