"""The configuration in force, and values derived from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from providers.catalogs.egress import first_tier_prices
from providers.clouds import CLOUD_OF_SCHEME
from providers.stores.base import SECRET_OPTIONS
from spotd.alert_sinks.base import AlertSink
from spotd.base.errors import InputError, Problem
from spotd.config.checks import node_role_key, read_options
from spotd.config.clouds import LocalProvider
from spotd.config.file import ConfigFile
from spotd.config.jump_hosts import jump_hosts
from spotd.config.schedule import Schedule
from spotd.config.stores import StoreSection
from spotd.domain.datasets import DataSet
from spotd.domain.market import Timing
from spotd.domain.queue import Limits
from spotd.history.market_episodes import EpisodeThresholds
from spotd.money.approval import Approval
from spotd.money.budget import Budget
from spotd.money.idle import IdlePolicy
from spotd.planner.core.credential_lease import StoreAccess
from spotd.planner.core.shard_stores import StorePlace
from spotd.spec import CheckpointDefaults, KnownNames
from spotd.spec.load import FALLBACK_S

if TYPE_CHECKING:
    from spotd.act.jump_host import JumpHost


class ConfigError(InputError):
    """A configuration that spotd does not start with."""


def config_error(path: Path, problems: Sequence[Problem]) -> ConfigError:
    """Return the error for the problems of the file at `path`."""
    title = f"the configuration {path} cannot be used:"
    return ConfigError(title, problems, f"correct {path}, then start again")


@dataclass(frozen=True)
class Config:
    """The configuration in force. `path` is the file it came from."""

    path: Path
    file: ConfigFile
    state_dir: Path
    socket: Path
    environ: Mapping[str, str] = field(repr=False)

    @property
    def database_url(self) -> str:
        return self.file.database.url or f"sqlite:///{self.state_dir / 'spotd.db'}"

    @property
    def deployment_store(self) -> str:
        """URL of the store of packages and logs."""
        return self.file.deployment.store or (self.state_dir / "store").as_uri()

    @property
    def checkpoint_defaults(self) -> CheckpointDefaults:
        """A folder of this machine serves as long as every machine of a job is one of its
        processes; a cloud's machine needs a store that it can reach."""
        section, providers = self.file.checkpoint, self.file.providers.values()
        local = all(isinstance(provider, LocalProvider) for provider in providers)
        store = (self.state_dir / "checkpoints").as_uri() if local else ""
        every = section.every
        return CheckpointDefaults(
            section.store or store, every.seconds or FALLBACK_S, section.keep, every
        )

    @property
    def budgets(self) -> list[Budget]:
        """Return the budgets in the order of the file."""
        return [
            Budget(
                name=name,
                microusd=one.usd_per_month,
                user=one.user,
                project=one.project,
                routes={int(percent): route for percent, route in one.routes.items()},
            )
            for name, one in self.file.budgets.items()
        ]

    @property
    def limits(self) -> Limits:
        """Return the limits of all jobs and of each project that has one."""
        projects = {
            name: one.max_nodes for name, one in self.file.projects.items() if one.max_nodes
        }
        return replace(self.file.limits.to_model(), projects=projects)

    @property
    def approval(self) -> Approval:
        """Return which projects may have jobs."""
        policies = self.file.policies
        names = {*self.file.projects, *policies.approved_projects}
        return Approval(policies.unapproved_projects, frozenset(names))

    @property
    def market_alerts(self) -> EpisodeThresholds:
        """Return which price and capacity changes are alerted."""
        return self.file.alerts.market.to_terms()

    @property
    def dry_run(self) -> bool:
        """Return whether outliers are only alerted."""
        return self.file.policies.dry_run

    @property
    def drill_days(self) -> float:
        """Return after how many days without a passed drill to alert; 0 for never."""
        return self.file.policies.drill_days

    @property
    def idle(self) -> IdlePolicy:
        """Return what happens to jobs with idle GPUs."""
        policies = self.file.policies
        after_s = policies.idle_after_min * 60
        return IdlePolicy(policies.idle_gpus, policies.idle_below, after_s, policies.dry_run)

    @property
    def timing(self) -> Timing:
        """Return the daemon's timeouts, and how long machines run without it."""
        unattended_s = self.file.limits.unattended_h * 3600
        granted_s = self.file.placement.on_demand_within_s
        timing = self.file.timing.to_model()
        return replace(timing, unattended_s=unattended_s, granted_s=granted_s)

    @property
    def schedule(self) -> Schedule:
        """Return how often the daemon does its periodic tasks."""
        timing = self.file.timing
        return Schedule(
            survey_s=timing.survey_every_s,
            offers_s=timing.offers_every_s,
            alerts_s=timing.alerts_every_s,
            expiry_s=min(max(self.timing.unattended_s / 96, 1.0), Schedule.expiry_s),
            prune_s=timing.prune_every_s,
            claim_s=timing.claim_every_s,
            keep_s=timing.keep_history_days * 86_400,
            lease_s=timing.lease_s,
            renew_s=timing.lease_s / 4,
        )

    @property
    def known(self) -> KnownNames:
        """The names that job files may use."""
        return KnownNames(
            clouds=_clouds(self.file),
            routes=tuple(self.file.alerts.routes),
            datasets=tuple(self.file.datasets),
        )

    def store_options(self, url: str) -> dict[str, str]:
        """Options, secrets included, of the [stores] entry that `url` lies under, the closest one.

        Raises ConfigError when a secret cannot be read any more.
        """
        entry = self._store(url)
        if entry is None:
            return {}
        try:
            return read_options(entry.options, self.environ)
        except ValueError as error:
            text, _, fix = str(error).partition("; ")
            raise config_error(self.path, [Problem("stores", text, fix)]) from None

    @property
    def store_places(self) -> dict[str, StorePlace]:
        """Return the places of the configured stores by URL."""
        return {entry.url: entry.place for entry in self.file.stores.values()}

    @property
    def shard_stores(self) -> tuple[str, ...]:
        """The URLs of those that take shards of machines of their region."""
        return tuple(entry.url for entry in self.file.stores.values() if entry.shards)

    @property
    def datasets(self) -> dict[str, DataSet]:
        """Return the data sets that jobs may mount, by name."""
        out = self.file.staging.usd_per_gb
        return {
            name: DataSet(
                one.url,
                one.copies,
                one.max_usd,
                first_tier_prices(),
                None if one.usd_per_gb is None else round(one.usd_per_gb * 1e6),
                one.size or 0,
                box_microusd_per_gb=None if out is None else round(out * 1e6),
            )
            for name, one in self.file.datasets.items()
        }

    def jump_hosts(self) -> dict[str, JumpHost]:
        """Return the providers' jump hosts. Raises ConfigError if a key is no longer readable."""
        try:
            return jump_hosts(self.file, self.environ)
        except ValueError as error:
            text, _, fix = str(error).partition("; ")
            raise config_error(self.path, [Problem("providers", text, fix)]) from None

    def store_access(self, url: str) -> StoreAccess:
        """Return which machines have which right to the store at `url`."""
        entry = self._store(url)
        options, lend = (entry.options, entry.lend) if entry else ({}, None)
        federate = entry.federate if entry else None
        cloud = lend.kind if lend else _cloud_of(url, options.get("endpoint", ""))
        return StoreAccess(
            url,
            cloud,
            keys=any(key.startswith(SECRET_OPTIONS) for key in options),
            lends=lend.to if lend else "",
            roles=frozenset(_roles(self.file)),
            shared=bool(entry and entry.shared),
            proof=federate.model_dump(exclude={"kind", "clouds"}) if federate else {},
            proves=frozenset(federate.clouds) if federate else frozenset(),
        )

    def lender(self, url: str) -> tuple[str, dict[str, Any]] | None:
        """Return the kind and settings of the store's credential issuer, or None."""
        entry = self._store(url)
        if entry is None or entry.lend is None:
            return None
        settings = entry.lend.model_dump(exclude={"kind", "to", "lifetime"}, exclude_none=True)
        settings["lifetime_s"] = entry.lend.lifetime or 0.0
        return entry.lend.kind, settings | dict(entry.lend.issuer_settings(entry.options))

    def _store(self, url: str) -> StoreSection | None:
        """The [stores] entry that `url` lies under, the closest one."""
        entries = [entry for entry in self.file.stores.values() if _is_under(url, entry.url)]
        return max(entries, key=lambda entry: len(entry.url), default=None)

    def alert_sinks(self) -> dict[str, AlertSink]:
        """Return the alert sinks by route name. Raises ConfigError for an unreadable secret."""
        sinks = {}
        for name, section in self.file.alerts.routes.items():
            try:
                sinks[name] = section.build(self.environ)
            except ValueError as error:
                text, _, fix = str(error).partition("; ")
                problem = Problem(f"alerts.routes.{name}", text, fix)
                raise config_error(self.path, [problem]) from None
        return sinks


def _is_under(url: str, prefix: str) -> bool:
    return url == prefix or url.startswith(prefix + "/")


def _cloud_of(url: str, endpoint: str) -> str:
    """Return the store's cloud; "" for a folder and for other servers."""
    cloud = CLOUD_OF_SCHEME.get(urlsplit(url).scheme)
    if cloud is None or cloud.store is None:
        return ""
    own = not endpoint or (urlsplit(endpoint).hostname or "").endswith(cloud.store.host)
    return cloud.name if own else ""


def _roles(file: ConfigFile) -> Iterator[str]:
    """Yield the clouds whose machines have an identity of their own."""
    for entry in file.providers.values():
        if getattr(entry, node_role_key(entry.kind), ""):
            yield entry.kind


def _clouds(file: ConfigFile) -> tuple[str, ...]:
    makes = {getattr(entry, "personality", entry.kind) for entry in file.providers.values()}
    return tuple(sorted({*file.providers, *makes}))
