"""The configuration file as a model. Every default is here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from providers.section import Section, formed
from spotd.alert_sinks.registry import AnyAlertRoute
from spotd.config.clouds import Provider
from spotd.config.dashboard import DashboardSection
from spotd.config.metrics_listener import MetricsSection
from spotd.config.schedule import Schedule
from spotd.config.stores import DatasetSection, StagingSection, StoreSection
from spotd.domain.market import Timing
from spotd.domain.node_history import DAYS
from spotd.domain.queue import Limits
from spotd.history.market_episodes import EpisodeThresholds
from spotd.spec.checkpoint_every import CheckpointEvery, EveryField
from spotd.spec.quantities import StoreUrl, Usd

MINIMAL = """\
    [providers.here]
    kind = "local"
    url = "http://127.0.0.1:8700"
    personality = "aws"
    token_file = "/path/to/the/cloud/token"
"""


class DatabaseSection(Section):
    url: str = Field(default="", description="SQLAlchemy URL; empty: SQLite in state_dir")


class DeploymentSection(Section):
    id: Annotated[str, formed(r"[0-9a-f]{12}", "0123456789ab, 12 in all")] | None = Field(
        default=None,
        description="Deployment whose machines a new database takes over, if the old one was lost",
    )
    store: StoreUrl | None = Field(
        default=None, description="Packages and logs of all jobs; default: a folder in state_dir"
    )


class CheckpointSection(Section):
    store: StoreUrl | None = Field(
        default=None,
        description="Store of jobs that name none; only local providers: a folder in state_dir",
    )
    every: EveryField = CheckpointEvery(auto=True)
    keep: int = Field(default=3, ge=1, le=1000)


class AccessSection(Section):
    """The Unix groups whose members may read or change things.

    Root and the user of the daemon always may.
    """

    admins: str = Field(
        default="spotd-admin", min_length=1, description="Group that may change things"
    )
    viewers: str = Field(
        default="", description="Group that may read; empty: everyone who can open the socket"
    )


class MarketAlertsSection(Section):
    """Which changes of prices and capacity send an alert: one when the change begins and one when
    it ends."""

    prices: bool = True
    capacity: bool = True
    price_rise_pct: float = Field(
        default=30.0,
        gt=0,
        le=1000,
        description="Percent above an offer's median price that causes an alert",
    )
    median_days: float = Field(default=7.0, ge=1, le=90, description="Days that the median covers")
    none_available_s: Annotated[float, Field(gt=0, le=7 * 86_400)] = 1800.0
    route: str = Field(default="", description="A name in [alerts.routes]; empty: default")

    def to_terms(self) -> EpisodeThresholds:
        return EpisodeThresholds(
            self.price_rise_pct / 100,
            self.median_days * 86_400,
            self.none_available_s,
            self.prices,
            self.capacity,
            self.route,
        )


class AlertsSection(Section):
    """Routes of alerts.

    Alerts that belong to no job (a cloud, the box, the database) go to the route "default"; without
    one, to the daemon's own log.
    """

    routes: dict[str, AnyAlertRoute] = Field(default={})
    market: MarketAlertsSection = MarketAlertsSection()
    repeat_s: float = Field(
        default=300.0,
        ge=0,
        le=86_400,
        description="After an alert, equal alerts about the same job are held back for this time, "
        "and sent as one message with a count; 0: all are sent at once",
    )


def _no_switch(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is not a limit; write a number")
    return value


class LimitsSection(Section):
    """Caps over all jobs; without them nothing but local clouds is used."""

    max_nodes: Annotated[int, BeforeValidator(_no_switch), Field(ge=1)] | None = None
    max_usd_per_hour: Usd | None = Field(
        default=None, description="Maximum of all machines together, in USD per hour"
    )
    unattended_h: Annotated[
        float,
        BeforeValidator(_no_switch),
        Field(gt=0, le=720, description="How long machines continue without a daemon, in hours"),
    ] = Timing.unattended_s / 3600

    overrides: Literal["admins", "second_person"] = Field(
        default="admins",
        description="Who lets a job exceed a budget: an admin, or two different ones",
    )

    def to_model(self) -> Limits:
        return Limits(self.max_nodes or 0, self.max_usd_per_hour or 0)


Seconds = Annotated[float, Field(gt=0, le=86_400)]


class TimingSection(Section):
    """How long the daemon waits before it acts, in seconds."""

    suspect_after_s: Seconds = Timing.suspect_after_s
    lost_after_s: Seconds = Timing.lost_after_s
    resurvey_s: Seconds = Timing.resurvey_s
    reterminate_s: Seconds = Timing.reterminate_s
    drain_margin_s: Seconds = Timing.drain_margin_s
    waits_s: Seconds = Field(
        default=Timing.waits_s, description="Wait before an alert that a job has no machine"
    )
    beside_s: Seconds = Field(
        default=Timing.beside_s,
        description="Wait before another machine is requested beside a slow one",
    )
    survey_every_s: Seconds = Field(
        default=Schedule.survey_s, description="Interval of listing a provider's machines"
    )
    offers_every_s: Seconds = Field(
        default=Schedule.offers_s, description="Interval of price refreshes"
    )
    alerts_every_s: Seconds = Field(
        default=Schedule.alerts_s, description="Interval of sending queued alerts"
    )
    lease_s: float = Field(
        default=Schedule.lease_s,
        ge=8,
        le=600,
        description="Lease of a periodic task before another daemon takes it",
    )
    claim_every_s: Seconds = Field(
        default=Schedule.claim_s, description="Interval of checking the deployment's claim"
    )
    prune_every_s: Seconds = Schedule.prune_s
    keep_history_days: float = Field(
        default=Schedule.keep_s / 86_400,
        gt=0,
        le=36_500,
        description="How long events and progress are retained",
    )

    def to_model(self) -> Timing:
        return Timing(
            suspect_after_s=self.suspect_after_s,
            lost_after_s=self.lost_after_s,
            resurvey_s=self.resurvey_s,
            reterminate_s=self.reterminate_s,
            drain_margin_s=self.drain_margin_s,
            waits_s=self.waits_s,
            beside_s=self.beside_s,
        )


class PlacementSection(Section):
    """Settings of placement, besides the clouds' signals and the jobs' preferences."""

    history_days: float = Field(
        default=DAYS, gt=0, le=366, description="Days of this fleet's history that count"
    )
    on_demand_within_s: Seconds = Field(
        default=Timing.granted_s,
        description="Time in which on-demand requests are expected to be granted, for deadlines",
    )


@dataclass(frozen=True)
class SafeModeSettings:
    """The crashes and seconds that start safe mode, and its duration."""

    after_crashes: int = 5
    within_s: float = 600.0
    quiet_s: float = 600.0


class SafeModeSection(Section):
    """When repeated crashes put the daemon into safe mode, where it only observes and terminates
    machines."""

    after_crashes: int = Field(default=SafeModeSettings.after_crashes, ge=1)
    within_s: Seconds = SafeModeSettings.within_s
    quiet_s: Seconds = Field(
        default=SafeModeSettings.quiet_s, description="How long safe mode lasts"
    )

    def to_settings(self) -> SafeModeSettings:
        return SafeModeSettings(self.after_crashes, self.within_s, self.quiet_s)


class MoneySection(Section):
    """Settings of cost reports."""

    control_box_usd_per_hour: Usd | None = Field(
        default=None, description="Price of the machine that spotd runs on, in USD per hour"
    )


class BudgetSection(Section):
    """A monthly (UTC) budget for the machines of all jobs, or of one user's."""

    usd_per_month: Usd = Field(description="The budget in USD per month")
    user: str = Field(default="", description="Only jobs of this user; empty: all users")
    project: str = Field(default="", description="Only jobs with this spotd.project; empty: all")
    routes: dict[Literal["50", "80", "100"], str] = Field(
        default={}, description="Alert routes by threshold in percent; otherwise the route default"
    )


class ProjectSection(Section):
    """Limits of the jobs that name this project. A project with a section is approved."""

    max_nodes: Annotated[int, BeforeValidator(_no_switch), Field(ge=1)] | None = Field(
        default=None, description="Maximum of machines at once; further jobs wait in the queue"
    )


class PoliciesSection(Section):
    """Conditions that raise an alert or refuse a job, beyond limits and budgets.
    docs/queueing.md"""

    dry_run: bool = Field(
        default=True,
        description="Only alert about cost outliers and idle jobs; false: pause them after a save",
    )
    idle_gpus: Literal["allow", "warn", "pause"] = Field(
        default="warn", description="Action for jobs with idle GPUs; pause depends on dry_run"
    )
    idle_below: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="Busy share of the GPUs below which a job counts as idle",
    )
    idle_after_min: float = Field(default=60, ge=10, le=1440, description="Time below idle_below")
    drill_days: float = Field(
        default=31, ge=0, le=3650, description="Days without a drill before an alert; 0: never"
    )
    approved_projects: list[str] = Field(
        default=[], description="Approved in addition to those of [projects]"
    )
    unapproved_projects: Literal["allow", "warn", "refuse"] = Field(
        default="warn",
        description="Action for jobs of other projects or none; warn reports what refuse would do",
    )


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
    stores: dict[str, StoreSection] = Field(default={})
    datasets: dict[str, DatasetSection] = Field(default={})
    staging: StagingSection = StagingSection()
    limits: LimitsSection = LimitsSection()
    access: AccessSection = AccessSection()
    providers: dict[str, Provider] = Field(default={})
    alerts: AlertsSection = AlertsSection()
    metrics: MetricsSection = MetricsSection()
    dashboard: DashboardSection = DashboardSection()
    timing: TimingSection = TimingSection()
    placement: PlacementSection = PlacementSection()
    safe_mode: SafeModeSection = SafeModeSection()
    money: MoneySection = MoneySection()
    budgets: dict[str, BudgetSection] = Field(default={})
    projects: dict[str, ProjectSection] = Field(default={})
    policies: PoliciesSection = PoliciesSection()
    log: LogSection = LogSection()
