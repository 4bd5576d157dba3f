"""The tables of the configuration for Azure: [providers.NAME], and of [stores.NAME] for its storage
accounts `lend` and `federate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from providers.azure.facts import FACTS
from providers.section import (
    RESERVED,
    FederateSection,
    LendSettings,
    Marginal,
    NetworkedProvider,
    formed,
)

_GROUPS = "capacityReservationGroups"
_UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_UUID_LIKE = "00000000-0000-0000-0000-000000000000"
if TYPE_CHECKING:
    Trusted = str
else:
    Trusted = Literal[tuple(FACTS.store.trusts)]
ReservationId = Annotated[
    str,
    formed(
        r"/subscriptions/[^/]+/(?i:resourceGroups)/[^/]+/providers/(?i:Microsoft\.Compute)"
        rf"/(?i:{_GROUPS})/[^/]+",
        f"/subscriptions/ID/resourceGroups/GROUP/providers/Microsoft.Compute/{_GROUPS}/NAME",
    ),
]
Image = Annotated[
    str,
    formed(
        r"/subscriptions/.+|/(?i:communityGalleries)/.+|[^:/]+(:[^:/]+){3}",
        "microsoft-dsvm:ubuntu-hpc:2204:latest, or an id",
    ),
]


class AzureProvider(NetworkedProvider):
    identity_keys: ClassVar[frozenset[str]] = frozenset({"subscription_id", "resource_group"})

    kind: Literal["azure"]
    subscription_id: str
    resource_group: str = Field(description="Resource group of the deployment, with its machines")
    regions: list[str] = Field(min_length=1)
    instance_types: list[str] | None = Field(
        default=None,
        min_length=1,
        description="Shell patterns of instance types; default: types with GPUs",
    )
    image: Image | None = Field(
        default=None,
        description='"publisher:offer:sku:version" or an id; default: Azure\'s own HPC image',
    )
    node_identity: str = Field(
        default="", description="Resource id of the machines' user assigned identity"
    )
    reservations: dict[ReservationId, Marginal] = Field(default={}, description=f"Id: {RESERVED}")
    endpoint: str = Field(
        default="", description="Endpoint of Resource Manager; default: the public cloud"
    )
    authority: str = Field(default="", description="Token authority; default: Microsoft's own")
    prices_endpoint: str = Field(
        default="", description="Address of the retail prices, without a path"
    )

    def policy_account(
        self, lends: Sequence[LendSettings], federates: Sequence[FederateSection]
    ) -> Mapping[str, str]:
        """Return the subscription and the resource group."""
        del lends, federates
        return {"subscription_id": self.subscription_id, "resource_group": self.resource_group}


class AzureLend(LendSettings):
    """Temporary credentials for the storage account named in the options. The box signs in the way
    Azure's own tools do."""

    kind: Literal["azure"]

    def issuer_settings(self, options: Mapping[str, str]) -> Mapping[str, str]:
        """Return the account and its other endpoint, of which alone folders are."""
        endpoint = options.get("endpoint", "").replace(".blob.", ".dfs.")
        return {"account": options["account"], "endpoint": endpoint}


class AzureFederate(FederateSection):
    """Machines of these clouds sign in to Azure with their own cloud's identity token, as an
    application or managed identity of Entra."""

    kind: Literal["azure"]
    clouds: list[Trusted] = Field(min_length=1)
    tenant: Annotated[str, formed(_UUID, _UUID_LIKE)]
    application: Annotated[str, formed(_UUID, _UUID_LIKE)] = Field(
        description="Client id of the application"
    )
    audience: Annotated[str, formed(r"\S+", "api://AzureADTokenExchange")] = (
        "api://AzureADTokenExchange"
    )

    def token_audience(self, cloud: str) -> str:
        """Return the audience: Entra takes the tokens of each cloud's machines."""
        return self.audience if cloud in self.clouds else ""
