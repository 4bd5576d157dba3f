"""The composition root: configuration in, a running daemon out; signals and a clean end."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import structlog

from providers.base import Provider
from providers.stores import open_store as open_objects
from providers.stores.base import ObjectStore
from spotd import log as logs
from spotd.act.alerts import Delivery
from spotd.act.bundle import build_bundle
from spotd.act.claim import Claim
from spotd.act.effects import World
from spotd.act.kit import Kit
from spotd.act.link import SshLink
from spotd.act.secrets import open_job_secrets
from spotd.act.visitors import Visitors
from spotd.act.ways import Ways
from spotd.beginning import (
    check_agents,
    check_deployment,
    empty_folder,
    go_on,
    hold_folder,
    make_folder,
    open_claim_store,
    open_deployment_store,
    settle,
)
from spotd.clock import Listening, RandomIds, SystemClock
from spotd.config import Config
from spotd.config.changes import check_change
from spotd.config.clouds import JUMP_KEYS
from spotd.config.images import configured_images, makers_of
from spotd.config.policies import facts_of, infos_of
from spotd.config.schedule import schedule_of
from spotd.doors import Door, open_doors
from spotd.duties import Duties
from spotd.errors import UserError
from spotd.hindrance import Hindrances
from spotd.loans import LEND_EVERY_S, loans_of, reaches_of, settings_of
from spotd.lock import hold_database
from spotd.loop import Loop, run_effect
from spotd.meters import Meters
from spotd.observe import staged
from spotd.observe.clouds import Survey
from spotd.observe.examining import examine
from spotd.observe.nodes import Follower
from spotd.outage import LEASES, Outage
from spotd.pool import Pool
from spotd.reconcile import market_now
from spotd.registry import Clouds, build_provider
from spotd.reload import has_terminal, reload
from spotd.remembering import PastReader
from spotd.reports import FOLDER, read_reports
from spotd.rounds import add_rounds
from spotd.routes import routes_of
from spotd.safemode import SafeMode
from spotd.sdnotify import notify
from spotd.serve.api import make_app
from spotd.serve.authority import Authority
from spotd.serve.call import Backing
from spotd.serve.metrics import Metrics
from spotd.signals import Signals
from spotd.store.backup import back_up
from spotd.store.base import StoreError
from spotd.store.damage import check_whole
from spotd.store.engine import file_of
from spotd.store.sql import open_store
from spotd.vault import JobKeys, open_job_keys, rotate, unlock

log = structlog.get_logger(__name__)

WATCHDOG_EVERY_S = 1.0  # the unit allows a minute
FIRST_LOOK_S = 3.0  # how long the start waits to know whose the deployment is
PUT_OUT_EVERY_S = 10.0  # machines that did not answer when a user was disabled are asked again
PATIENCE_S = 3.0  # with each kind of thing that is under way when we stop


class Daemon:
    """Everything that runs in one `spotd` process."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.clock = SystemClock()
        self.listening = Listening(self.clock)
        self.ids, self.timing = RandomIds(), config.timing
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{self.ids.token()[:8]}"
        self._hints: list[Callable[[], None]] = []
        self._fed_s = -WATCHDOG_EVERY_S
        self._locks = [hold_folder(make_folder(config.state_dir))]
        settings = config.file.safe_mode.to_settings()
        self.safe = SafeMode(config.state_dir, self.clock, settings)
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
            store.free_duties()  # nobody else has this file open: their holders are dead
            settle(store, file, self.clock.now_us())
        go_on(self.clock, store.newest_us())
        self.store, self.meters = store, Meters()
        self.hindrances = Hindrances(store, self.clock)
        self.vault = unlock(self.store, config.state_dir, config.environ, self.ids.random_bytes)
        self.store.set_limits(config.limits)
        self.providers = Clouds(self._build_providers(config, {}))
        self._own_options = config.store_options(config.deployment_store)
        self.objects = open_deployment_store(config)
        shared, every_s = open_claim_store(config, self.objects), config.file.timing.claim_every_s
        self.claim = Claim(self.store, shared, self.clock, self.owner, self.ids.chance, every_s)
        self.survey = Survey(self.store, self.providers, self.clock)
        self.ways = Ways(config.jump_hosts(), self.clock)
        self.link = SshLink(build_bundle(), way=self.ways.dial)
        self.visitors = Visitors(self.link, self.keys, self.clock)
        self.authority = Authority(config.file.access.admins, config.file.access.viewers)
        self.loans = loans_of(lambda: self.config, self.link, self.keys, self.clock)
        self.world = self._world()
        self.pool = Pool(self.providers, partial(run_effect, self.world))
        told = self._progressed, self.meters.note_round
        self.loop = Loop(self.world, self.timing, self.owner, self.pool.submit, *told)
        self.follower = Follower(
            self.store, self.link, self.keys, self.objects, self.clock, self.listening.listened
        )
        self.delivery = Delivery(routes_of(config), self.clock)
        self.duties = self._duties()
        self.duties.add(LEND_EVERY_S, "lend", self.loans.renew)
        self.duties.add(every_s, "claim", self.claim.keep)
        self.duties.stand_still(self.claim.why)
        late_s = LEASES * config.file.timing.lease_s
        self.outage = Outage(socket.gethostname(), self.clock, late_s, self.delivery.page)
        self.duties.tell_renewals(self.outage.note)
        self._hints = [self.loop.poke, self.follower.poke]

    def run(self) -> None:
        """Until SIGTERM or SIGINT, or SIGHUP where a terminal was closed; elsewhere that one has
        the configuration read anew. Raises UserError when the socket is busy."""
        metrics = Metrics(backing := self._backing())
        app = make_app(backing, self.authority, metrics)
        doors = open_doors(self.config, app, metrics)
        self.safe.begin()
        signals = Signals((signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        looked = threading.Event()
        threading.Thread(target=self.claim.watch, args=(looked,), daemon=True).start()
        looked.wait(FIRST_LOOK_S)
        thread = threading.Thread(target=self.loop.run, name="reconcile")
        thread.start()
        try:
            self.ways.start()
            self.duties.start()
            self.follower.start()
            notify("READY=1")
            self._tell()
            log.info("ready", socket=str(self.config.socket), providers=list(self.providers))
            received = self._wait_for_the_end(signals)
            notify("STOPPING=1")
            log.info("stopping", signal=received.name)
        finally:  # without its main thread it would go on half alive, and hold the state folder
            self._close(doors, thread)
        self.safe.end_well()

    def _close(self, doors: Sequence[Door], thread: threading.Thread) -> None:
        """Stop deciding, let calls in flight record their outcome, then close. Whatever does not
        end in time is what a crash would leave: due again."""
        self.loop.stop()
        self.claim.stop()
        thread.join(PATIENCE_S)
        self.ahead.stop()
        self.duties.stop(PATIENCE_S)
        self.pool.close(PATIENCE_S)
        self.follower.stop()
        self.ways.close()
        for door in doors:
            door.stop()
        self.store.close()
        for lock in self._locks:
            lock.close()
        log.info("stopped")

    def _wait_for_the_end(self, signals: Signals) -> signal.Signals:
        in_terminal = has_terminal()
        while True:
            received = signals.wait()
            if received is not signal.SIGHUP or in_terminal:
                return received
            now_us, request = self.clock.now_us(), self.ids.token()
            reload(self.config, self._take_over, self.store, now_us, request)

    def _take_over(self, config: Config) -> None:
        """What may fail comes first, and changes nothing. Raises UserError, StoreError, and what an
        adapter raises."""
        check_change(self.config, config, self._own_options)
        providers, routes = self._build_providers(config, self.providers), routes_of(config)
        hosts = config.jump_hosts()
        self.store.set_limits(config.limits)
        logs.configure(level=config.file.log.level, form=config.file.log.format)
        access = config.file.access
        self.authority.admins, self.authority.viewers = access.admins, access.viewers
        self.config, self.timing = config, config.timing
        self.survey.change(providers)
        self.pool.change(providers)
        self.providers.change(providers)
        self.ways.change(hosts)
        self.ways.start()
        self.claim.move(open_claim_store(config, self.objects))
        self.delivery.change(routes)
        self.duties.change(self.timing, schedule_of(config))
        self.outage.patience_s = LEASES * config.file.timing.lease_s
        self.loop.change(self.timing)
        try:  # what waited for a limit need not wait for its time
            self.store.note_jobs([job.id for job in self.store.jobs(finished=False)])
        except StoreError as error:
            log.warning("the store does not answer", error=str(error))

    def _hint(self) -> None:
        """Something was recorded that makes a job due: look now, not at the next poll."""
        for hint in self._hints:
            hint()

    def _progressed(self) -> None:
        """The loop went round, or waits for the store; not each time is worth a word."""
        now_s = self.clock.monotonic_s()
        if now_s - self._fed_s >= WATCHDOG_EVERY_S:
            self._fed_s = now_s
            notify("WATCHDOG=1")
            self.duties.notice_clock()
            self._tell()

    def _tell(self) -> None:
        """What keeps this daemon from its work, as it begins and ends."""
        states = {
            "safe_mode": (self.safe.why(), "safe mode is over: spotd launches and starts again"),
            "contested": (self.claim.why(), "the deployment is this spotd's alone: it goes on"),
        }
        for name, why in self.ways.why().items():
            states[f"jump:{name}"] = why, f"the jump host of provider {name} lets us through again"
        self.hindrances.tell(states)

    def keys(self, job_id: str) -> JobKeys:
        """The keys of a job, out of the vault."""
        return open_job_keys(self.vault, job_id, self.store.job_key(job_id))

    def _open_store(self, url: str) -> ObjectStore:
        return open_objects(url, self.config.store_options(url))

    def _build_providers(
        self, config: Config, known: Mapping[str, Provider]
    ) -> dict[str, Provider]:
        """By name; those of `known` with the settings that we have stay what they are."""
        found, before = dict[str, Provider](), self.config.file.providers
        for name, section in config.file.providers.items():
            if name in known and section == before.get(name):
                found[name] = known[name]
                continue
            settings = section.model_dump(exclude={"kind", *JUMP_KEYS}, exclude_none=True)
            deployment = self.store.deployment()
            made = build_provider(section.kind, name, deployment, settings)
            found[name] = self.meters.watch(made)
        return found

    def _world(self) -> World:
        self.staged = staged.Staged(lambda: self.config.datasets, self._open_store)
        return World(
            store=self.store,
            providers=self.providers,
            link=self.link,
            packages=self.objects,
            clock=self.clock,
            deployment=self.store.deployment(),
            survey=self.survey.survey,
            keys=self.keys,
            secrets=partial(open_job_secrets, self.store, self.vault),
            open_store=self._open_store,
            store_options=lambda url: self.config.store_options(url),  # noqa: PLW0108 - read anew
            started_at_us=self.clock.now_us(),
            listening_since=self.listening.since_us,
            answering_since=self.survey.answering_since,
            reached_since=self.ways.reached_since,
            unreached=self.ways.unreached,
            safe_until=self.safe.until_us,
            contested=self.claim.why,
            places=lambda: self.config.store_places,
            shards=lambda: self.config.shard_stores,
            datasets=self.staged.now,
            tools=Kit(self.objects, self.config.state_dir / "wheels").tools,
            shards_for=partial(self.loans.shards, self.store),
            past=PastReader(self.store, lambda: self.config.file.placement.history_days).at,
            buckets=self.loans.buckets,
            lend=partial(self.loans.begin, self.store),
            lendable=self.loans.check,
        )

    def _duties(self) -> Duties:
        duties = Duties(
            *(self.store, self.providers, self.survey, self.delivery.deliver, self.clock),
            *(self.owner, self.timing, schedule_of(self.config)),
        )
        duties.add(PUT_OUT_EVERY_S, "put_out", self.visitors.put_out)
        self.ahead = add_rounds(duties, lambda: self.config, self.world, self.staged.note)
        return duties

    def _backing(self) -> Backing:
        return Backing(
            store=self.store,
            clock=self.clock,
            ids=self.ids,
            vault=self.vault,
            objects=self.objects,
            open_store=self._open_store,
            spool_dir=empty_folder(self.config.state_dir / "spool"),
            defaults=lambda: self.config.checkpoint_defaults,
            known=lambda: self.config.known,
            market=lambda _now_us: market_now(self.world, self.timing),
            providers_info=lambda: infos_of(self.config, self.providers),
            back_up=partial(back_up, self.config.database_url),
            test_alert=self.delivery.test,
            reach_routes=self.delivery.reach,
            rotate_key=self._rotate_key,
            admit=partial(self.visitors.admit, self.store),
            put_out=partial(self.visitors.put_out, self.store),
            is_trusted=self.authority.trusted.__contains__,
            policy_facts=lambda cloud: facts_of(self.config, self.store, self.clock, cloud),
            silent=lambda: self.survey.silent(3 * self.config.file.timing.survey_every_s),
            remarks=self.duties.remarks.found,
            held=self.survey.held,
            held_leftovers=self.survey.held_leftovers,
            unswept=self.survey.unswept,
            safe_mode=self.safe.why,
            leave_safe_mode=self._leave_safe_mode,
            contested=self.claim.why,
            store_cloud=lambda url: self.config.store_access(url).cloud,
            bucket_settings=lambda: settings_of(self.config),
            is_shared=lambda url: self.config.store_access(url).shared,
            reaches=lambda: reaches_of(self.config, self.loans),
            jump_host=self.ways.address,
            try_ways=self.ways.try_out,
            examine=partial(examine, self.providers),
            live_reports=lambda: read_reports(self.config.state_dir / FOLDER),
            makers=lambda: makers_of(self.config, self.providers),
            configured_images=lambda: configured_images(self.config),
            budgets=lambda: self.config.budgets,
            drill_days=lambda: self.config.drill_days,
            approval=lambda: self.config.approval,
            tally=self.store.tally,
            meters=self.meters,
            owner=self.owner,
            box_microusd_per_h=lambda: self.config.file.money.control_box_usd_per_hour or 0,
        )

    def _leave_safe_mode(self) -> None:
        self.safe.leave()
        self._tell()
        self.store.note_jobs([job.id for job in self.store.jobs(False)])

    def _rotate_key(self) -> list[str]:
        own = self.config
        return rotate(self.store, self.vault, own.state_dir, own.environ, self.ids.random_bytes)


def run_daemon(config: Config) -> int:
    """The whole life of a daemon; returns its exit code. Raises UserError and StoreError."""
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
        # Python would wait for calls in flight. They are due again, as after a crash.
        log.info("cut off", threads=sorted(late))
        logging.shutdown()
        os._exit(code)
    return code
