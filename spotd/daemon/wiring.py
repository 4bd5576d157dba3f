"""Build the daemon's parts from its configuration: servers, alert sinks, leases, periodic tasks.

Functions that take `config` as a callable read it at each use, because SIGHUP replaces it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from starlette.applications import Starlette

from providers.base import Provider
from providers.images import ImageMaker
from providers.stores.base import StoreUnavailableError
from providers.stores.settings import BucketSettings, SettingsError, bucket_settings
from spotd.act import dataset_prefetch, drill_runner
from spotd.act.credential_leases import CredentialLeases, LeaseLink
from spotd.act.effects import EffectContext
from spotd.api.http.metrics_server import serve_scrapes
from spotd.api.http.server import serve
from spotd.api.metrics.exposition import Metrics
from spotd.api.request.context import DashboardFacts
from spotd.base.clock import Clock
from spotd.base.errors import UserError
from spotd.config.config import Config
from spotd.config.metrics_listener import split_address
from spotd.config.provider_registry import CredentialIssuers
from spotd.daemon.periodic import PeriodicTasks
from spotd.daemon.reconcile import market_now
from spotd.dashboard.team_server import start_team_server
from spotd.observe import budgets, drills, idle_gpus, market_alerts, step_totals
from spotd.observe.storage_costs import record_job
from spotd.planner.core.credential_lease import AccessMethod, StoreReach
from spotd.security.master_key import MasterKeyError
from spotd.security.secrets import JobKeys, SecretBox, open_secrets
from spotd.store.interface import Store

# Seconds between checks for leases that are due. The shortest lease is renewed after 300 s.


@runtime_checkable
class ServesTls(Protocol):
    """A server whose certificate is read again while it runs."""

    def reload_certificate(self) -> None: ...


class AnyServer(Protocol):
    """A running server."""

    def stop(self) -> None: ...


def start_servers(
    config: Config, app: Starlette, metrics: Metrics, store: Store, clock: Clock
) -> list[AnyServer]:
    """Start the API's socket, and the metrics server and the dashboard if they are configured.

    Raises UserError if one cannot start; the others are stopped then.
    """
    servers: list[AnyServer] = [serve(app, config.socket)]
    try:
        section = config.file.metrics
        if section.listen:
            token = section.read_token(config.environ)
            servers.append(serve_scrapes(metrics.text, *split_address(section.listen), token))
        if config.file.dashboard.listen:
            servers.append(_start_dashboard(config, store, clock))
    except BaseException:
        for server in servers:
            server.stop()
        raise
    return servers


def _start_dashboard(config: Config, store: Store, clock: Clock) -> AnyServer:
    section = config.file.dashboard
    secret = section.oidc.read_client_secret(config.environ) if section.oidc else ""
    return start_team_server(section, secret, store, clock, config.socket)


def reload_certificates(servers: Sequence[AnyServer]) -> None:
    """Read the certificates of running servers again. Raises UserError."""
    for server in servers:
        if isinstance(server, ServesTls):
            server.reload_certificate()


def dashboard_facts(config: Config) -> DashboardFacts | None:
    """Return the facts that the doctor checks of the team's dashboard; None without a dashboard."""
    section = config.file.dashboard
    if not section.listen:
        return None
    return DashboardFacts(
        listen=section.listen,
        url=section.url,
        certificate=section.tls_certificate,
        tokens=section.tokens,
        issuer=section.oidc.issuer if section.oidc else "",
    )


def add_periodic_tasks(
    tasks: PeriodicTasks,
    config: Callable[[], Config],
    context: EffectContext,
    note: Callable[[str], None],
) -> dataset_prefetch.DatasetPrefetch:
    """Add budgets, idle GPUs, market, step totals, prefetch and drills to the periodic tasks.

    `note(url)` is called when a copy of a data set is complete.
    """
    clock, schedule = context.clock, config().schedule
    budget_check = budgets.Budgets(
        budgets=lambda: config().budgets,
        clock=clock,
        dry_run=lambda: config().dry_run,
        places=context.job_stores.places,
        datasets=lambda: config().datasets,
    )
    tasks.add(schedule.budgets_s, "budgets", budget_check.keep)
    idle_check = idle_gpus.IdleGpuCheck(lambda: config().idle, clock)
    tasks.add(schedule.idle_gpus_s, "idle", idle_check.look)
    market_check = market_alerts.Markets(lambda: config().market_alerts, clock)
    tasks.add(schedule.market_alerts_s, "market", market_check.look)
    tasks.add(schedule.step_totals_s, "totals", step_totals.StepTotals(clock).check)
    prefetch = dataset_prefetch.DatasetPrefetch(
        market=lambda: market_now(context, config().timing),
        open_store=context.job_stores.open,
        clock=clock,
        bytes_per_s=lambda: config().file.staging.bytes_per_s,
        note=note,
        reckon=lambda store, job: record_job(
            store, job, context.job_stores.places(), clock.now_us(), config().datasets
        ),
        contested=context.condition.contested,
    )
    tasks.add(schedule.prefetch_s, "stage", prefetch.look)
    drill_task = drill_runner.DrillRunner(
        link=context.link,
        keys=context.keys,
        providers=context.providers,
        market=lambda _now_us: market_now(context, config().timing),
        clock=clock,
        contested=context.condition.contested,
    )
    tasks.add(schedule.drills_s, "drills", drill_task.look)
    overdue = drills.OverdueDrills(lambda: config().drill_days, clock)
    tasks.add(schedule.overdue_drills_s, "overdue drills", overdue.look)
    return prefetch


def credential_leases(
    config: Callable[[], Config], link: LeaseLink, keys: Callable[[str], JobKeys], clock: Clock
) -> CredentialLeases:
    """Build the leases of store credentials that machines get."""
    issuers = CredentialIssuers()
    return CredentialLeases(
        lambda url: config().store_access(url),
        lambda url: issuers.of(config().lender(url)),
        lambda url: config().store_options(url),
        link,
        keys,
        clock,
        lambda: (config().store_places, config().shard_stores),
        lambda: config().datasets,
    )


def store_reaches(config: Config, leases: CredentialLeases) -> list[StoreReach]:
    """Return how machines of each provider reach each remote checkpoint store.

    Folders of this box are left out, and so are local providers, whose machines run on it. Each
    lease that can be made is tried.
    """
    file, limit_s = config.file, config.timing.unattended_s
    reaches = []
    for url in _remote_stores(config):
        lasts_s, error = _lease_duration_s(config, leases, url)
        for name, entry in file.providers.items():
            cloud = getattr(entry, "personality", entry.kind)
            method = leases.way(url, cloud)
            if method is AccessMethod.NONE and entry.kind == "local":
                continue
            access, leased = config.store_access(url), method is AccessMethod.LENT
            reaches.append(
                StoreReach(
                    name,
                    cloud,
                    url,
                    access.cloud,
                    method,
                    limit_s,
                    lasts_s if leased else 0.0,
                    error if leased else "",
                    roled=cloud == access.cloud and cloud in access.roles,
                )
            )
    return reaches


def bucket_settings_of(config: Config) -> dict[str, BucketSettings | str]:
    """Return each bucket's settings by URL, or the reason why they cannot be read.

    Only buckets of clouds are read: the prices of other servers are unknown.
    """
    settings: dict[str, BucketSettings | str] = {}
    for url in (url for url in _remote_stores(config) if config.store_access(url).cloud):
        try:
            current = bucket_settings(url, config.store_options(url))
        except (SettingsError, UserError) as error:
            settings[url] = str(error)
        else:
            if current is not None:
                settings[url] = current
    return settings


def _remote_stores(config: Config) -> list[str]:
    stores = (store.url for store in config.file.stores.values())
    urls = dict.fromkeys((config.checkpoint_defaults.store, *stores))
    return [url for url in urls if url and not url.startswith("file:")]


def _lease_duration_s(config: Config, leases: CredentialLeases, url: str) -> tuple[float, str]:
    """Return how long a lease lasts in seconds, and the error if none can be made."""
    if not config.store_access(url).lends:
        return 0.0, ""
    try:
        return leases.lasting_s(url), ""
    except StoreUnavailableError as error:
        return 0.0, str(error)


def makers_of(config: Config, providers: Mapping[str, Provider]) -> dict[str, str]:
    """Return the cloud make of every provider that makes images."""
    return {
        name: entry.kind
        for name, entry in config.file.providers.items()
        if isinstance(providers.get(name), ImageMaker)
    }


def configured_images(config: Config) -> dict[str, str]:
    """Image id -> where it is named."""
    named = {name: getattr(entry, "image", "") for name, entry in config.file.providers.items()}
    return {image: f"[providers.{name}] image" for name, image in named.items() if image}


def open_job_secrets(store: Store, vault: SecretBox, job_id: str) -> dict[str, str]:
    """Return the values by name, as of now. A job's own value comes before the deployment's.

    Raises MasterKeyError, also for a secret that no longer exists.
    """
    own = open_secrets(vault, job_id, store.jobs.secrets(job_id))
    job = store.jobs.find(job_id)
    wanted = set(job.spec.program.secrets) - set(own) if job is not None else set()
    stored = open_secrets(vault, "", store.secrets.values(wanted)) if wanted else {}
    if gone := sorted(wanted - set(stored)):
        text = f"the secret {gone[0]} of job {job_id} is no longer stored"
        raise MasterKeyError(text, f"spotctl secret set {gone[0]}")
    return {**stored, **own}
