"""The tables of the configuration for Google Cloud: [providers.NAME], and of [stores.NAME] for its
buckets `lend` and `federate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from providers.federation import pool_provider
from providers.gcp.facts import FACTS
from providers.section import (
    RESERVED,
    FederateSection,
    LendSettings,
    Marginal,
    NetworkedProvider,
    formed,
    parse_endpoint,
)

_ACCOUNT = r"^[^@\s]+@[^@\s]+\.iam\.gserviceaccount\.com$"
_POOL = r"projects/\d+/locations/global/workloadIdentityPools/[a-z0-9-]{4,32}"
_POOL_LIKE = "projects/123456789012/locations/global/workloadIdentityPools/NAME"
_IMAGE = "projects/PROJECT/global/images/NAME"
if TYPE_CHECKING:
    Trusted = str
else:
    Trusted = Literal[tuple(FACTS.store.trusts)]
_POOL_PROVIDERS = " and ".join(map(pool_provider, FACTS.store.trusts if FACTS.store else ()))
ReservationId = Annotated[
    str, formed(r"[a-z]+-[a-z]+[0-9]+-[a-z]/[a-z][-a-z0-9]*", "us-central1-a/NAME (its zone first)")
]


class GcpProvider(NetworkedProvider):
    identity_keys: ClassVar[frozenset[str]] = frozenset({"project"})

    kind: Literal["gcp"]
    project: str
    regions: list[str] = Field(min_length=1)
    credentials_file: Path | None = Field(
        default=None, description="Default: the credentials that the SDK finds"
    )
    end_credentials_file: Path | None = Field(
        default=None, description="Credentials for ending machines"
    )
    instance_types: list[str] | None = Field(
        default=None,
        min_length=1,
        description="Shell patterns of instance types; default: types with GPUs",
    )
    image: Annotated[str, formed(r"projects/[^/]+/global/images/.+", _IMAGE)] | None = Field(
        default=None, description="Default: Google's own GPU image of Ubuntu 24.04"
    )
    subnetwork: str = Field(
        default="spotd",
        min_length=1,
        description="Name of the network's subnetwork, the same in every region",
    )
    fabric: Annotated[str, formed(r"([a-z][-a-z0-9]{0,30})?", "gpudirect")] = Field(
        default="", description="Subnetworks for GPUDirect"
    )
    node_service_account: str = Field(
        default="", description="Email of the machines' service account"
    )
    reservations: dict[ReservationId, Marginal] = Field(
        default={}, description=f'"ZONE/NAME": {RESERVED}'
    )
    flex_start: bool = Field(
        default=False,
        description="Offer flex-start as block capacity: requests are queued, machines last 7 days",
    )
    compute_endpoint: Annotated[str, AfterValidator(parse_endpoint)] = Field(
        default="",
        description="Endpoint of Private Service Connect; default: compute.googleapis.com",
    )
    billing_endpoint: Annotated[str, AfterValidator(parse_endpoint)] = Field(
        default="", description="Replaces cloudbilling.googleapis.com"
    )
    services_endpoint: Annotated[str, AfterValidator(parse_endpoint)] = Field(
        default="", description="Replaces cloudquotas and cloudresourcemanager.googleapis.com"
    )

    def policy_account(
        self, lends: Sequence[LendSettings], federates: Sequence[FederateSection]
    ) -> Mapping[str, str]:
        """Return the project."""
        del lends, federates
        return {"project": self.project}


class GcpLend(LendSettings):
    kind: Literal["gcp"]
    service_account: str = Field(
        pattern=_ACCOUNT,
        description="Service account with access to the bucket; its limited tokens are leased",
    )
    credentials_file: Path | None = Field(
        default=None,
        description="Credentials of the box; default: those that Google's own tools use",
    )


class GcpFederate(FederateSection):
    """Machines of these clouds sign in to Google Cloud with their own cloud's identity token, and
    impersonate a service account that may use the bucket."""

    kind: Literal["gcp"]
    clouds: list[Trusted] = Field(min_length=1)
    service_account: str = Field(pattern=_ACCOUNT, description="Service account to impersonate")
    pool: Annotated[str, formed(_POOL, _POOL_LIKE)] = Field(
        description=f"Workload identity pool with the providers {_POOL_PROVIDERS}"
    )
    audience: str = Field(
        default="", description="Audience of the tokens of Azure's machines; those of AWS need none"
    )

    def find_problems(self) -> Iterator[tuple[str, str, str]]:
        """Yield that the audience is missing which Azure's machines need."""
        if "azure" in self.clouds and not self.audience:
            fix = 'set the ID URI of an application in their tenant, like audience = "api://spotd"'
            yield "audience", "is missing: machines of Azure need it to request a token", fix
