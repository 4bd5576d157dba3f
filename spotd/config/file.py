"""The configuration file as a model. Every key has its default here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from spotd.addresses import is_loopback
from spotd.model import Limits, Severity, Timing
from spotd.safemode import SafeModeSettings
from spotd.spec.quantities import Duration, StoreUrl, Usd

SECRET_OPTIONS = ("access_key_id", "secret_access_key", "session_token")
MAKES = ("aws", "gcp", "azure")
MINIMAL = """\
    [providers.here]
    kind = "local"
    url = "http://127.0.0.1:8700"
    personality = "aws"
    token_file = "/path/to/the/cloud/token"
"""


class Section(BaseModel):
    """A table of the file; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DatabaseSection(Section):
    url: str = Field(default="", description="SQLAlchemy URL; empty: SQLite in state_dir")


class DeploymentSection(Section):
    id: str | None = Field(
        default=None,
        pattern="^[0-9a-f]{12}$",
        description="For a new database in place of one that was lost: whose machines it shows",
    )
    store: StoreUrl | None = Field(
        default=None, description="Packages and logs of all jobs; default: a folder in state_dir"
    )


class CheckpointSection(Section):
    store: StoreUrl | None = Field(
        default=None,
        description="For jobs that name none; with local providers alone: a folder in state_dir",
    )
    every: Duration = 300.0
    keep: int = Field(default=3, ge=1, le=1000)


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


class StoreSection(Section):
    """How the stores below `url` are reached."""

    url: StoreUrl
    options: Annotated[dict[str, str], BeforeValidator(parse_options)] = {}


def parse_local_url(value: Any) -> str:
    """The address of a local cloud. Raises ValueError for any other machine: a local provider is
    free of limits because it cannot cost money."""
    parts = urlsplit(str(value))
    host = parts.hostname or ""
    if parts.scheme != "http" or not host or not parts.port or parts.path.strip("/"):
        raise ValueError(f"{value!r} is no address of a local cloud; write http://127.0.0.1:PORT")
    if not is_loopback(parts):
        raise ValueError(f"{host} is not this machine; a local cloud is at http://127.0.0.1:PORT")
    return str(value).rstrip("/")


class LocalProvider(Section):
    """A cloud whose machines are processes on this one."""

    kind: Literal["local"]
    url: Annotated[str, BeforeValidator(parse_local_url)]
    personality: Literal["aws", "gcp", "azure"]
    token_file: Path | None = None
    end_token_file: Path | None = Field(default=None, description="With which machines are ended")


Network = Literal["public", "private", "jump"]


def parse_endpoint(value: str) -> str:
    """The address of an API; "" is the vendor's own. Raises ValueError for one that our
    credentials would be sent to in the clear."""
    parts = urlsplit(value)
    safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts))
    if value and (not safe or not parts.hostname or parts.path.strip("/")):
        raise ValueError(f"{value!r} is no address of an API; write https://HOST")
    return value.rstrip("/")


class AwsProvider(Section):
    kind: Literal["aws"]
    regions: list[str] = Field(min_length=1)
    profile: str = ""
    end_profile: str = Field(default="", description="With which machines are ended")
    instance_types: list[str] | None = Field(
        default=None, min_length=1, description="Shell patterns; default: those with GPUs"
    )
    image: str | None = Field(
        default=None,
        pattern=r"^(ami-[0-9a-f]+|ssm:/.+)$",
        description='"ami-…" or "ssm:/PARAMETER"; default: AWS\'s own GPU image of Ubuntu 22.04',
    )
    network: Network = Field(default="public", description="Whether machines have public addresses")
    node_role: str = Field(default="", description="Instance profile of the machines")
    queue: str = Field(default="", description="SQS queue of each region that EventBridge fills")


class GcpProvider(Section):
    kind: Literal["gcp"]
    project: str
    regions: list[str] = Field(min_length=1)
    credentials_file: Path | None = Field(
        default=None, description="Default: what the SDK finds by itself"
    )
    end_credentials_file: Path | None = Field(
        default=None, description="With which machines are ended"
    )
    instance_types: list[str] | None = Field(
        default=None, min_length=1, description="Shell patterns; default: those with GPUs"
    )
    image: str | None = Field(
        default=None,
        pattern=r"^projects/[^/]+/global/images/.+$",
        description="Default: Google's own GPU image of Ubuntu 24.04",
    )
    network: Network = Field(default="public", description="Whether machines have public addresses")
    subnetwork: str = Field(
        default="spotd", min_length=1, description="Its name, the same in every region"
    )
    node_service_account: str = Field(default="", description="Email of what the machines are")
    compute_endpoint: Annotated[str, AfterValidator(parse_endpoint)] = Field(
        default="", description="Of Private Service Connect; default: compute.googleapis.com"
    )
    billing_endpoint: Annotated[str, AfterValidator(parse_endpoint)] = Field(
        default="", description="In place of cloudbilling.googleapis.com"
    )


class AzureProvider(Section):
    kind: Literal["azure"]
    subscription_id: str
    resource_group: str = Field(description="The deployment's own; its machines are in it")
    regions: list[str] = Field(min_length=1)
    instance_types: list[str] | None = Field(
        default=None, min_length=1, description="Shell patterns; default: those with GPUs"
    )
    image: str | None = Field(
        default=None,
        pattern=r"^(/subscriptions/.+|/[Cc]ommunity[Gg]alleries/.+|[^:/]+(:[^:/]+){3})$",
        description='"publisher:offer:sku:version" or an id; default: Azure\'s own HPC image',
    )
    network: Network = Field(default="public", description="Whether machines have public addresses")
    node_identity: str = Field(
        default="", description="Resource id of the machines' user assigned identity"
    )
    endpoint: str = Field(default="", description="Of Resource Manager; default: the public cloud")
    authority: str = Field(default="", description="Where tokens come from, if not Microsoft's own")
    prices_endpoint: str = Field(default="", description="Of the retail prices, without a path")


Provider = Annotated[
    LocalProvider | AwsProvider | GcpProvider | AzureProvider, Field(discriminator="kind")
]


class SlackRoute(Section):
    """A Slack incoming webhook."""

    kind: Literal["slack"]
    url_file: Path | None = None
    url_env: str | None = None
    url_credential: str | None = None
    min_severity: Severity = Severity.INFO
    allow_hosts: list[str] = Field(
        default=[], description="Besides Slack's own; a loopback host may use http"
    )


class LogRoute(Section):
    """Alerts as lines of the daemon's own log."""

    kind: Literal["log"]
    min_severity: Severity = Severity.INFO


Route = Annotated[SlackRoute | LogRoute, Field(discriminator="kind")]


class AccessSection(Section):
    """Who of those that can open the socket may do what, by Unix group. Root and the user of the
    daemon always may."""

    admins: str = Field(default="spotd-admin", min_length=1, description="May change things")
    viewers: str = Field(default="", description="May look; empty: whoever can open the socket")


class AlertsSection(Section):
    """What belongs to no job (a cloud, the box, the database) goes to the route "default"; without
    one of that name, to the daemon's own log."""

    routes: dict[str, Route] = {}


def _no_switch(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is no limit; write a number")
    return value


class LimitsSection(Section):
    """Caps over all jobs; without them nothing but local clouds is used."""

    max_nodes: Annotated[int, BeforeValidator(_no_switch), Field(ge=1)] | None = None
    max_usd_per_hour: Usd | None = Field(default=None, description="Micro-USD once read")
    unattended_h: Annotated[
        float,
        BeforeValidator(_no_switch),
        Field(gt=0, le=720, description="How long machines go on without a daemon, hours"),
    ] = Timing.unattended_s / 3600

    def to_model(self) -> Limits:
        return Limits(self.max_nodes or 0, self.max_usd_per_hour or 0)


Seconds = Annotated[float, Field(gt=0, le=86_400)]


class TimingSection(Section):
    """How patient the daemon is, in seconds."""

    suspect_after_s: Seconds = Timing.suspect_after_s
    lost_after_s: Seconds = Timing.lost_after_s
    resurvey_s: Seconds = Timing.resurvey_s
    reterminate_s: Seconds = Timing.reterminate_s
    drain_margin_s: Seconds = Timing.drain_margin_s
    waits_s: Seconds = Field(
        default=Timing.waits_s, description="Before the user of a job without a machine is told"
    )
    survey_every_s: Seconds = Field(default=10.0, description="Between listings of a provider")
    offers_every_s: Seconds = Field(default=60.0, description="Between price refreshes")
    alerts_every_s: Seconds = Field(default=1.0, description="Between looks into the outbox")
    lease_s: float = Field(default=20.0, ge=8, le=600, description="Before a duty is taken over")
    claim_every_s: Seconds = Field(default=30.0, description="Between looks at whose we are")
    prune_every_s: Seconds = 3600.0
    keep_history_days: float = Field(
        default=90.0, gt=0, le=36_500, description="Events and progress"
    )

    def to_model(self) -> Timing:
        return Timing(
            suspect_after_s=self.suspect_after_s,
            lost_after_s=self.lost_after_s,
            resurvey_s=self.resurvey_s,
            reterminate_s=self.reterminate_s,
            drain_margin_s=self.drain_margin_s,
            waits_s=self.waits_s,
        )


class SafeModeSection(Section):
    """When a daemon that crashes again and again only observes and ends machines."""

    after_crashes: int = Field(default=SafeModeSettings.after_crashes, ge=1)
    within_s: Seconds = SafeModeSettings.within_s
    quiet_s: Seconds = Field(default=SafeModeSettings.quiet_s, description="How long it lasts")

    def to_settings(self) -> SafeModeSettings:
        return SafeModeSettings(self.after_crashes, self.within_s, self.quiet_s)


class LogSection(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "human", "json"] = "auto"


class ConfigFile(Section):
    """The whole file."""

    state_dir: Path | None = None
    socket: Path | None = None
    database: DatabaseSection = DatabaseSection()
    deployment: DeploymentSection = DeploymentSection()
    checkpoint: CheckpointSection = CheckpointSection()
    stores: dict[str, StoreSection] = {}
    limits: LimitsSection = LimitsSection()
    access: AccessSection = AccessSection()
    providers: dict[str, Provider] = {}
    alerts: AlertsSection = AlertsSection()
    timing: TimingSection = TimingSection()
    safe_mode: SafeModeSection = SafeModeSection()
    log: LogSection = LogSection()


def identity(provider: Section) -> Mapping[str, object]:
    """What makes two providers the same cloud account, whatever they are called."""
    shared = {"kind", "url", "personality", "profile", "project", "subscription_id"}
    return provider.model_dump(include={*shared, "resource_group"})
