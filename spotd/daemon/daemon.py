"""The daemon process: build every part from the configuration, run, reload, and stop cleanly."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from functools import partial

import structlog

from providers.base import Provider
from providers.section import JUMP_KEYS
from providers.stores import open_store as open_objects
from providers.stores.base import ObjectStore
from spotd.act.alerts import Delivery
from spotd.act.bundle import build_bundle
from spotd.act.claim import DeploymentClaim
from spotd.act.effects import DaemonCondition, EffectContext, JobStores, NodeStoreAccess
from spotd.act.jump_hosts import JumpHosts
from spotd.act.link import SshLink
from spotd.act.saver_env import SaverEnv
from spotd.act.ssh_access import SshAccess
from spotd.api.http.app import make_app
from spotd.api.http.permissions import Permissions
from spotd.api.metrics.exposition import Metrics
from spotd.api.request.context import (
    AlertServices,
    ApiContext,
    CloudServices,
    ConfiguredSettings,
    DaemonStatus,
    StorageServices,
    UserAccess,
)
from spotd.base import log as logs
from spotd.base.clock import ListeningSince, RandomIds, SystemClock
from spotd.base.errors import UserError
from spotd.base.live_reports import FOLDER, read_reports
from spotd.base.lock import hold_database
from spotd.base.process_metrics import ProcessMetrics
from spotd.config.changes import check_change
from spotd.config.config import Config
from spotd.config.iam_policies import facts_of, infos_of
from spotd.config.provider_registry import Clouds, build_provider
from spotd.daemon.condition_alerts import ConditionAlerts
from spotd.daemon.db_outage import LEASES, DatabaseOutageAlert
from spotd.daemon.history_cache import HistoryCache
from spotd.daemon.loop import Loop, run_effect
from spotd.daemon.periodic import PeriodicTasks
from spotd.daemon.pool import Pool
from spotd.daemon.reconcile import market_now
from spotd.daemon.reload import has_terminal, reload, reload_for_user
from spotd.daemon.safe_mode import SafeMode
from spotd.daemon.sdnotify import notify
from spotd.daemon.signals import Signals
from spotd.daemon.startup import (
    advance_clock,
    check_agents,
    check_deployment,
    detect_moved_database,
    empty_folder,
    hold_folder,
    make_folder,
    open_claim_store,
    open_deployment_store,
)
from spotd.daemon.wiring import (
    AnyServer,
    add_periodic_tasks,
    bucket_settings_of,
    configured_images,
    credential_leases,
    dashboard_facts,
    makers_of,
    open_job_secrets,
    reload_certificates,
    start_servers,
    store_reaches,
)
from spotd.observe import dataset_copies
from spotd.observe.clouds import InstanceSurvey
from spotd.observe.nodes import Follower
from spotd.observe.readiness import examine
from spotd.security.secrets import JobKeys, open_job_keys, rotate, unlock
from spotd.store.backup import back_up
from spotd.store.engine import file_of
from spotd.store.errors import StoreError
from spotd.store.integrity import check_whole
from spotd.store.sql_store import SqlStore, open_store

log = structlog.get_logger(__name__)

WATCHDOG_EVERY_S = 1.0  # the unit allows a minute
FIRST_CLAIM_CHECK_S = 3.0  # seconds that the start waits for the deployment claim
STOP_TIMEOUT_S = 3.0  # for each kind of work in progress at the stop


class Daemon:
    """Everything that runs in one `spotd` process."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.clock = SystemClock()
        self.listening = ListeningSince(self.clock)
        self.ids, self.timing = RandomIds(), config.timing
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{self.ids.token()[:8]}"
        self._hints: list[Callable[[], None]] = []
        self.servers: list[AnyServer] = []
        self._watchdog_fed_s = -WATCHDOG_EVERY_S
        self._reload_lock = threading.Lock()  # a signal and a user may ask at once
        self._locks = [hold_folder(make_folder(config.state_dir))]
        settings = config.file.safe_mode.to_settings()
        self.safe_mode = SafeMode(config.state_dir, self.clock, settings)
        self.store, self.process_metrics = self._open_database(config), ProcessMetrics()
        self.condition_alerts = ConditionAlerts(self.store, self.clock)
        self.secret_box = unlock(
            self.store.secrets, config.state_dir, config.environ, self.ids.random_bytes
        )
        self.store.market.set_limits(config.limits)
        self.providers = Clouds(self._build_providers(config, {}))
        self._own_options = config.store_options(config.deployment_store)
        self.objects = open_deployment_store(config)
        shared, every_s = open_claim_store(config, self.objects), config.schedule.claim_s
        self.claim = DeploymentClaim(
            self.store, shared, self.clock, self.owner, self.ids.chance, every_s
        )
        self.survey = InstanceSurvey(self.store, self.providers, self.clock)
        self.jump_hosts = JumpHosts(config.jump_hosts(), self.clock)
        self.link = SshLink(build_bundle(), way=self.jump_hosts.dial)
        self.ssh_access = SshAccess(self.link, self.keys, self.clock)
        self.permissions = Permissions(config.file.access.admins, config.file.access.viewers)
        self.leases = credential_leases(lambda: self.config, self.link, self.keys, self.clock)
        self.context = self._build_context()
        self.pool = Pool(self.providers, partial(run_effect, self.context))
        self.loop = Loop(
            self.context,
            self.timing,
            self.owner,
            dispatch=self.pool.submit,
            progressed=self._progressed,
            decided=self.process_metrics.note_round,
        )
        self.follower = Follower(
            self.store, self.link, self.keys, self.objects, self.clock, self.listening.listened
        )
        self.delivery = self._open_delivery(config)
        self.tasks = self._build_tasks()
        self.tasks.add(config.schedule.credential_leases_s, "lend", self.leases.renew)
        self.tasks.add(every_s, "claim", self.claim.keep)
        self.tasks.stand_still(self.claim.why)
        late_s = LEASES * config.file.timing.lease_s
        self.outage_alert = DatabaseOutageAlert(
            socket.gethostname(), self.clock, late_s, self.delivery.page
        )
        self.tasks.tell_renewals(self.outage_alert.note)
        self._hints = [self.loop.poke, self.follower.poke]

    def _open_delivery(self, config: Config) -> Delivery:
        return Delivery(
            config.alert_sinks(),
            self.clock,
            repeat_s=config.file.alerts.repeat_s,
            dashboard_url=config.file.dashboard.url,
        )

    def _open_database(self, config: Config) -> SqlStore:
        """Open the store, lock its file, and check that it fits this daemon."""
        file = file_of(config.database_url)
        if file is not None:
            self._locks.append(hold_database(file))
            check_whole(file)
        store = open_store(
            config.database_url,
            now=self.clock.now_us,
            notify=self._hint,
            deployment_factory=lambda: config.file.deployment.id or self.ids.token()[:12],
        )
        check_deployment(store, config)
        check_agents(store)
        if file is not None:
            # This process alone has the file open: earlier holders are dead.
            store.leases.release_all()
            detect_moved_database(store, file, self.clock.now_us())
        advance_clock(self.clock, store.leases.newest_us())
        return store

    def run(self) -> None:
        """Run until SIGTERM or SIGINT. Raises UserError if the socket is in use.

        SIGHUP reloads the configuration, but stops a daemon whose terminal was closed.
        """
        metrics = Metrics(api_context := self._build_api_context())
        app = make_app(api_context, self.permissions, metrics)
        self.servers = start_servers(self.config, app, metrics, self.store, self.clock)
        self.safe_mode.begin()
        signals = Signals((signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        looked = threading.Event()
        threading.Thread(target=self.claim.watch, args=(looked,), daemon=True).start()
        looked.wait(FIRST_CLAIM_CHECK_S)
        thread = threading.Thread(target=self.loop.run, name="reconcile")
        thread.start()
        try:
            self.jump_hosts.start()
            self.tasks.start()
            self.follower.start()
            notify("READY=1")
            self._update_condition_alerts()
            log.info("ready", socket=str(self.config.socket), providers=list(self.providers))
            received = self._wait_for_the_end(signals)
            notify("STOPPING=1")
            log.info("stopping", signal=received.name)
        finally:  # else it goes on without its main thread and keeps the state folder locked
            self._close(thread)
        self.safe_mode.end_well()

    def _close(self, thread: threading.Thread) -> None:
        """Stop deciding, let calls in flight record their outcome, then close.

        A call that does not end in time is due again at the next start, as after a crash.
        """
        self.loop.stop()
        self.claim.stop()
        thread.join(STOP_TIMEOUT_S)
        self.prefetch.stop()
        self.tasks.stop(STOP_TIMEOUT_S)
        self.pool.close(STOP_TIMEOUT_S)
        self.follower.stop()
        self.jump_hosts.close()
        for server in self.servers:
            server.stop()
        self.store.close()
        for lock in self._locks:
            lock.close()
        log.info("stopped")

    def _wait_for_the_end(self, signals: Signals) -> signal.Signals:
        in_terminal = has_terminal()
        while True:
            received = signals.wait()
            closed = in_terminal and not has_terminal()
            if received is not signal.SIGHUP or closed:
                return received
            now_us, request = self.clock.now_us(), self.ids.token()
            with self._reload_lock:
                reload(self.config, self._apply_config, self.store, now_us, request)

    def _reload_for_user(self) -> list[str]:
        with self._reload_lock:
            now_us = self.clock.now_us()
            return reload_for_user(self.config, self._apply_config, self.store, now_us)

    def _apply_config(self, config: Config) -> None:
        """Replace the configuration of the running daemon.

        Steps that may fail come first and change nothing. Raises UserError, StoreError, and errors
        of the provider adapters.
        """
        check_change(self.config, config, self._own_options)
        providers, sinks = self._build_providers(config, self.providers), config.alert_sinks()
        hosts = config.jump_hosts()
        reload_certificates(self.servers)
        self.store.market.set_limits(config.limits)
        logs.configure(level=config.file.log.level, form=config.file.log.format)
        access = config.file.access
        self.permissions.admins, self.permissions.viewers = access.admins, access.viewers
        self.config, self.timing = config, config.timing
        self.survey.change(providers)
        self.pool.change(providers)
        self.providers.change(providers)
        self.jump_hosts.change(hosts)
        self.jump_hosts.start()
        self.claim.move(open_claim_store(config, self.objects))
        self.delivery.change(
            sinks,
            repeat_s=config.file.alerts.repeat_s,
            dashboard_url=config.file.dashboard.url,
        )
        self.tasks.change(self.timing, config.schedule)
        self.outage_alert.patience_s = LEASES * config.file.timing.lease_s
        self.loop.change(self.timing)
        try:  # jobs that wait for a limit are checked at once
            self.store.jobs.mark_due([job.id for job in self.store.jobs.rows(finished=False)])
        except StoreError as error:
            log.warning("the store does not answer", error=str(error))

    def _hint(self) -> None:
        """Wake the loop and the follower: a record made a job due."""
        for hint in self._hints:
            hint()

    def _progressed(self) -> None:
        """Feed systemd's watchdog, at most once per WATCHDOG_EVERY_S."""
        now_s = self.clock.monotonic_s()
        if now_s - self._watchdog_fed_s >= WATCHDOG_EVERY_S:
            self._watchdog_fed_s = now_s
            notify("WATCHDOG=1")
            self.tasks.notice_clock()
            self._update_condition_alerts()

    def _update_condition_alerts(self) -> None:
        """Alert on conditions that block this daemon when they begin and when they end."""
        states = {
            "safe_mode": (
                self.safe_mode.why(),
                "safe mode is over: spotd launches and starts again",
            ),
            "contested": (
                self.claim.why(),
                "no other spotd uses the deployment now: this one continues",
            ),
        }
        for name, why in self.jump_hosts.why().items():
            states[f"jump:{name}"] = why, f"the jump host of provider {name} responds again"
        self.condition_alerts.update(states)

    def keys(self, job_id: str) -> JobKeys:
        """Return the SSH keys of a job, decrypted."""
        return open_job_keys(self.secret_box, job_id, self.store.jobs.key(job_id))

    def _open_store(self, url: str) -> ObjectStore:
        return open_objects(url, self.config.store_options(url))

    def _build_providers(
        self, config: Config, known: Mapping[str, Provider]
    ) -> dict[str, Provider]:
        """Build the providers by name. One with unchanged settings is reused from `known`."""
        built: dict[str, Provider] = {}
        before = self.config.file.providers
        for name, section in config.file.providers.items():
            if name in known and section == before.get(name):
                built[name] = known[name]
                continue
            settings = section.model_dump(exclude={"kind", *JUMP_KEYS}, exclude_none=True)
            deployment = self.store.deployment.id()
            provider = build_provider(section.kind, name, deployment, settings)
            built[name] = self.process_metrics.watch(provider)
        return built

    def _build_context(self) -> EffectContext:
        self.dataset_copies = dataset_copies.DatasetCopies(
            lambda: self.config.datasets, self._open_store
        )
        return EffectContext(
            store=self.store,
            providers=self.providers,
            link=self.link,
            packages=self.objects,
            clock=self.clock,
            deployment=self.store.deployment.id(),
            survey=self.survey.survey,
            keys=self.keys,
            secrets=partial(open_job_secrets, self.store, self.secret_box),
            job_stores=JobStores(
                open=self._open_store,
                options=lambda url: self.config.store_options(url),  # noqa: PLW0108 - read anew
                places=lambda: self.config.store_places,
                shards=lambda: self.config.shard_stores,
                datasets=self.dataset_copies.now,
            ),
            condition=DaemonCondition(
                started_at_us=self.clock.now_us(),
                listening_since=self.listening.since_us,
                answering_since=self.survey.answering_since,
                reached_since=self.jump_hosts.reached_since,
                unreached=self.jump_hosts.unreached,
                safe_until=self.safe_mode.until_us,
                contested=self.claim.why,
            ),
            tools=SaverEnv(self.objects, self.config.state_dir / "wheels").tools,
            store_access=NodeStoreAccess(
                shards_for=partial(self.leases.shards, self.store),
                buckets=self.leases.buckets,
                lend=partial(self.leases.begin, self.store),
                lendable=self.leases.check,
            ),
            past=HistoryCache(self.store, lambda: self.config.file.placement.history_days).at,
        )

    def _build_tasks(self) -> PeriodicTasks:
        tasks = PeriodicTasks(
            store=self.store,
            providers=self.providers,
            survey=self.survey,
            deliver=self.delivery.deliver,
            clock=self.clock,
            holder=self.owner,
            timing=self.timing,
            schedule=self.config.schedule,
        )
        tasks.add(
            self.config.schedule.end_access_s,
            "put_out",
            self.ssh_access.end_access_of_disabled_users,
        )
        self.prefetch = add_periodic_tasks(
            tasks, lambda: self.config, self.context, self.dataset_copies.note
        )
        return tasks

    def _build_api_context(self) -> ApiContext:
        return ApiContext(
            store=self.store,
            clock=self.clock,
            ids=self.ids,
            vault=self.secret_box,
            storage=StorageServices(
                objects=self.objects,
                open_store=self._open_store,
                spool_dir=empty_folder(self.config.state_dir / "spool"),
                back_up=partial(back_up, self.config.database_url),
                store_cloud=lambda url: self.config.store_access(url).cloud,
                bucket_settings=lambda: bucket_settings_of(self.config),
                is_shared=lambda url: self.config.store_access(url).shared,
                store_reaches=lambda: store_reaches(self.config, self.leases),
            ),
            settings=ConfiguredSettings(
                defaults=lambda: self.config.checkpoint_defaults,
                known=lambda: self.config.known,
                budgets=lambda: self.config.budgets,
                drill_days=lambda: self.config.drill_days,
                approval=lambda: self.config.approval,
                overrides=lambda: self.config.file.limits.overrides,
                dashboard=lambda: dashboard_facts(self.config),
                box_microusd_per_h=lambda: self.config.file.money.control_box_usd_per_hour or 0,
            ),
            market=lambda _now_us: market_now(self.context, self.timing),
            clouds=self._build_cloud_services(),
            alerts=AlertServices(test=self.delivery.test, check_routes=self.delivery.reach),
            rotate_key=self._rotate_key,
            users=UserAccess(
                admit=partial(self.ssh_access.admit, self.store),
                end_access_of_disabled_users=partial(
                    self.ssh_access.end_access_of_disabled_users, self.store
                ),
                is_trusted=self.permissions.trusted.__contains__,
            ),
            daemon=DaemonStatus(
                safe_mode=self.safe_mode.why,
                leave_safe_mode=self._leave_safe_mode,
                reload=self._reload_for_user,
                contested=self.claim.why,
                process_metrics=self.process_metrics,
                owner=self.owner,
            ),
            metric_records=self.store.metrics.read,
        )

    def _build_cloud_services(self) -> CloudServices:
        return CloudServices(
            providers=lambda: infos_of(self.config, self.providers),
            policy_facts=lambda cloud: facts_of(self.config, self.store, self.clock, cloud),
            silent_providers=lambda: self.survey.silent(3 * self.config.file.timing.survey_every_s),
            provider_warnings=self.tasks.remarks.found,
            held=self.survey.held,
            held_leftovers=self.survey.held_leftovers,
            unlisted_providers=self.survey.unswept,
            jump_host=self.jump_hosts.address,
            try_jump_hosts=self.jump_hosts.try_out,
            check_readiness=partial(examine, self.providers),
            live_reports=lambda: read_reports(self.config.state_dir / FOLDER),
            image_makers=lambda: makers_of(self.config, self.providers),
            configured_images=lambda: configured_images(self.config),
        )

    def _leave_safe_mode(self) -> None:
        self.safe_mode.leave()
        self._update_condition_alerts()
        self.store.jobs.mark_due([job.id for job in self.store.jobs.rows(False)])

    def _rotate_key(self) -> list[str]:
        own = self.config
        return rotate(
            self.store.secrets,
            self.secret_box,
            own.state_dir,
            own.environ,
            self.ids.random_bytes,
        )


def run_daemon(config: Config) -> int:
    """Run a daemon to its end and return the exit code. Raises UserError and StoreError."""
    logs.configure(level=config.file.log.level, form=config.file.log.format)
    daemon, code = Daemon(config), 0
    try:
        daemon.run()
    except UserError:
        raise
    except Exception:
        log.exception("the daemon failed")
        code = 1
    late = [t.name for t in threading.enumerate() if t is not threading.main_thread()]
    if late:
        # Python would wait for these calls. They are due again, as after a crash.
        log.info("cut off", threads=sorted(late))
        logging.shutdown()
        os._exit(code)
    return code
