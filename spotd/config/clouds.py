"""The tables [providers.NAME] of the configuration file, one class per kind of cloud."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from providers.clouds import CloudName
from spotd.base.addresses import is_loopback
from spotd.base.section import Section, formed
from spotd.spec.quantities import Marginal


def parse_local_url(value: Any) -> str:
    """The address of a local cloud. Raises ValueError for any other machine: a local provider is
    free of limits because it cannot cost money."""
    parts = urlsplit(str(value))
    host = parts.hostname or ""
    if parts.scheme != "http" or not host or not parts.port or parts.path.strip("/"):
        raise ValueError(
            f"{value!r} is not an address of a local cloud; write http://127.0.0.1:PORT"
        )
    if not is_loopback(parts):
        raise ValueError(f"{host} is not this machine; a local cloud is at http://127.0.0.1:PORT")
    return str(value).rstrip("/")


class LocalProvider(Section):
    """A cloud whose machines are processes on this one."""

    kind: Literal["local"]
    url: Annotated[str, BeforeValidator(parse_local_url)]
    personality: CloudName
    token_file: Path | None = None
    end_token_file: Path | None = Field(default=None, description="Credentials for ending machines")


AwsId = Annotated[str, formed(r"cr-[0-9a-f]+", "cr-0123456789abcdef0")]
GcpId = Annotated[
    str, formed(r"[a-z]+-[a-z]+[0-9]+-[a-z]/[a-z][-a-z0-9]*", "us-central1-a/NAME (its zone first)")
]
_GROUPS = "capacityReservationGroups"
AzureId = Annotated[
    str,
    formed(
        r"/subscriptions/[^/]+/(?i:resourceGroups)/[^/]+/providers/(?i:Microsoft\.Compute)"
        rf"/(?i:{_GROUPS})/[^/]+",
        f"/subscriptions/ID/resourceGroups/GROUP/providers/Microsoft.Compute/{_GROUPS}/NAME",
    ),
]
_GCP_IMAGE = "projects/PROJECT/global/images/NAME"
AzureImage = Annotated[
    str,
    formed(
        r"/subscriptions/.+|/(?i:communityGalleries)/.+|[^:/]+(:[^:/]+){3}",
        "microsoft-dsvm:ubuntu-hpc:2204:latest, or an id",
    ),
]
_RESERVED = (
    'Id (gcp: "ZONE/NAME") = USD/h beyond what you pay for it anyway, often 0. spotd never buys one'
)
Network = Literal["public", "private", "jump"]
JUMP_KEYS = ("jump", "jump_host_key", "jump_key_file", "jump_key_env", "jump_key_credential")


def parse_host_key(value: str) -> str:
    """A public key in OpenSSH's one-line form, without its comment. Raises ValueError."""
    kind, data = (*value.split(), "", "")[:2]
    try:
        blob = base64.b64decode(data, validate=True)
    except ValueError:
        blob = b""
    name = kind.encode()
    if not name or blob[: 4 + len(name)] != len(name).to_bytes(4, "big") + name:
        raise ValueError(
            f"{value[:60]!r} is not a public key; copy the line of the jump host's own "
            "/etc/ssh/ssh_host_ed25519_key.pub"
        )
    return f"{kind} {data}"


class NetworkedProvider(Section):
    """How the machines of a cloud are reached."""

    network: Network = Field(
        default="public",
        description="Reach machines by their public address, a private one, or a jump host",
    )
    jump: str | None = Field(default=None, description='Jump host: "user@host" or "user@host:port"')
    jump_host_key: Annotated[str, AfterValidator(parse_host_key)] | None = Field(
        default=None, description="Public host key of the jump host; no other is accepted"
    )
    jump_key_file: Path | None = Field(default=None, description="Private key for the jump host")
    jump_key_env: str | None = None
    jump_key_credential: str | None = None


def parse_endpoint(value: str) -> str:
    """The address of an API; "" is the vendor's own. Raises ValueError for one that our
    credentials would be sent to in the clear."""
    parts = urlsplit(value)
    safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts))
    if value and (not safe or not parts.hostname or parts.path.strip("/")):
        raise ValueError(f"{value!r} is not an address of an API; write https://HOST")
    return value.rstrip("/")


class AwsProvider(NetworkedProvider):
    kind: Literal["aws"]
    regions: list[str] = Field(min_length=1)
    profile: str = ""
    end_profile: str = Field(default="", description="Credentials for ending machines")
    instance_types: list[str] | None = Field(
        default=None,
        min_length=1,
        description="Shell patterns of instance types; default: types with GPUs",
    )
    image: Annotated[str, formed(r"ami-[0-9a-f]+|ssm:/.+", "ami-0123456789abcdef0")] | None = Field(
        default=None,
        description='"ami-…" or "ssm:/PARAMETER"; default: AWS\'s own GPU image of Ubuntu 22.04',
    )
    node_role: str = Field(default="", description="Instance profile of the machines")
    reservations: dict[AwsId, Marginal] = Field(default={}, description=_RESERVED)
    queue: str = Field(default="", description="SQS queue of each region that EventBridge fills")


class GcpProvider(NetworkedProvider):
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
    image: Annotated[str, formed(r"projects/[^/]+/global/images/.+", _GCP_IMAGE)] | None = Field(
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
    reservations: dict[GcpId, Marginal] = Field(default={}, description=_RESERVED)
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


class AzureProvider(NetworkedProvider):
    kind: Literal["azure"]
    subscription_id: str
    resource_group: str = Field(description="Resource group of the deployment, with its machines")
    regions: list[str] = Field(min_length=1)
    instance_types: list[str] | None = Field(
        default=None,
        min_length=1,
        description="Shell patterns of instance types; default: types with GPUs",
    )
    image: AzureImage | None = Field(
        default=None,
        description='"publisher:offer:sku:version" or an id; default: Azure\'s own HPC image',
    )
    node_identity: str = Field(
        default="", description="Resource id of the machines' user assigned identity"
    )
    reservations: dict[AzureId, Marginal] = Field(default={}, description=_RESERVED)
    endpoint: str = Field(
        default="", description="Endpoint of Resource Manager; default: the public cloud"
    )
    authority: str = Field(default="", description="Token authority; default: Microsoft's own")
    prices_endpoint: str = Field(
        default="", description="Address of the retail prices, without a path"
    )


Provider = Annotated[
    LocalProvider | AwsProvider | GcpProvider | AzureProvider, Field(discriminator="kind")
]


def identity(provider: Section) -> Mapping[str, object]:
    """Return what makes two providers the same cloud account, whatever their names."""
    shared = {"kind", "url", "personality", "profile", "project", "subscription_id"}
    return provider.model_dump(include={*shared, "resource_group"})
