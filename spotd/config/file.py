"""The configuration file as a model. Every default is here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from spotd.alert_sinks.registry import AnyAlertRoute
from spotd.base.section import Section, formed
from spotd.config.clouds import Provider
from spotd.config.metrics_listener import MetricsSection
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
    every: EveryField = CheckpointEvery(auto=True)
    keep: int = Field(default=3, ge=1, le=1000)


class AccessSection(Section):
    """The Unix groups whose members may read or change things.

    Root and the user of the daemon always may.
    """

    admins: str = Field(default="spotd-admin", min_length=1, description="May change things")
    viewers: str = Field(default="", description="May look; empty: whoever can open the socket")


class MarketAlertsSection(Section):
    """Which news of prices and capacity are told, each once when it begins and once when it is
    over."""

    prices: bool = True
    capacity: bool = True
    price_rise_pct: float = Field(
        default=30.0, gt=0, le=1000, description="Above an offer's own median before it is told"
    )
    median_days: float = Field(default=7.0, ge=1, le=90, description="What the median is of")
    none_available_s: Annotated[float, Field(gt=0, le=7 * 86_400)] = 1800.0
    route: str = Field(default="", description="Of [alerts.routes]; else default")

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
    beside_s: Seconds = Field(
        default=Timing.beside_s, description="Before another place is asked beside a slow machine"
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
            beside_s=self.beside_s,
        )


class PlacementSection(Section):
    """Settings of placement, beside the clouds' signals and the jobs' wishes."""

    history_days: float = Field(
        default=DAYS, gt=0, le=366, description="How much of this fleet's own past counts"
    )
    on_demand_within_s: Seconds = Field(
        default=Timing.granted_s, description="On-demand is granted so soon: deadlines rely on it"
    )


@dataclass(frozen=True)
class SafeModeSettings:
    """The crashes and seconds that start safe mode, and its duration."""

    after_crashes: int = 5
    within_s: float = 600.0
    quiet_s: float = 600.0


class SafeModeSection(Section):
    """When a daemon that crashes again and again only observes and ends machines."""

    after_crashes: int = Field(default=SafeModeSettings.after_crashes, ge=1)
    within_s: Seconds = SafeModeSettings.within_s
    quiet_s: Seconds = Field(default=SafeModeSettings.quiet_s, description="How long it lasts")

    def to_settings(self) -> SafeModeSettings:
        return SafeModeSettings(self.after_crashes, self.within_s, self.quiet_s)


class MoneySection(Section):
    """Settings of cost reports."""

    control_box_usd_per_hour: Usd | None = Field(
        default=None, description="Of the machine that spotd runs on; micro-USD once read"
    )


class BudgetSection(Section):
    """A monthly (UTC) budget for the machines of all jobs, or of one user's."""

    usd_per_month: Usd = Field(description="Micro-USD once read")
    user: str = Field(default="", description="Whose jobs; empty: everybody's")
    project: str = Field(default="", description="Of jobs with this spotd.project; empty: of all")
    routes: dict[Literal["50", "80", "100"], str] = Field(
        default={}, description="Alert routes by threshold, in percent; else default"
    )


class ProjectSection(Section):
    """Limits of the jobs that name this project. A project with a section is approved."""

    max_nodes: Annotated[int, BeforeValidator(_no_switch), Field(ge=1)] | None = Field(
        default=None, description="Machines at once; a job in the way of that waits in line"
    )


class PoliciesSection(Section):
    """Conditions that raise an alert or refuse a job, beyond limits and budgets.
    docs/queueing.md"""

    dry_run: bool = Field(
        default=True,
        description="Outliers and idle jobs are told of alone; false: they save, and are paused",
    )
    idle_gpus: Literal["allow", "warn", "pause"] = Field(
        default="warn", description="Of jobs whose GPUs do next to nothing; pause obeys dry_run"
    )
    idle_below: float = Field(
        default=0.1, ge=0, le=1, description="The share of their time that GPUs are busy"
    )
    idle_after_min: float = Field(default=60, ge=10, le=1440, description="For so long")
    drill_days: float = Field(
        default=31, ge=0, le=3650, description="Without a drill, before that is told; 0: never"
    )
    approved_projects: list[str] = Field(default=[], description="Besides those of [projects]")
    unapproved_projects: Literal["allow", "warn", "refuse"] = Field(
        default="warn",
        description="Jobs of other projects, or of none; warn says what refuse would do",
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
    timing: TimingSection = TimingSection()
    placement: PlacementSection = PlacementSection()
    safe_mode: SafeModeSection = SafeModeSection()
    money: MoneySection = MoneySection()
    budgets: dict[str, BudgetSection] = Field(default={})
    projects: dict[str, ProjectSection] = Field(default={})
    policies: PoliciesSection = PoliciesSection()
    log: LogSection = LogSection()
