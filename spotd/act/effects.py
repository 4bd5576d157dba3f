"""Derive calls from committed state, perform them, and record their outcomes.

`effects_of` is pure: it reads the effects that the last commit has armed. `call` makes one call and
returns a function that records its outcome. Neither decides anything. If the outcome is not
recorded, the call becomes due again, with the same token.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

from providers.base import (
    AuthError,
    CapacityError,
    Launched,
    LaunchRequest,
    PriceError,
    Provider,
    ProviderError,
    QuotaError,
    RejectedError,
    Scope,
    ThrottledError,
    UnpreparedError,
)
from providers.catalogs.egress import first_tier_prices
from providers.catalogs.storage import storage_prices
from providers.stores.base import NotFoundError, ObjectStore
from providers.stores.base import StoreError as ObjectStoreError
from spotd import wire
from spotd.act import image_builder, serial_console
from spotd.act.checkpoints import read_head, record_head
from spotd.act.lease_records import Lend, LendShards, ShardLeases, first_to_end
from spotd.act.node_link import LinkError, NodeLink
from spotd.act.saver_env import SaverPackages, send_tools
from spotd.base.clock import Clock
from spotd.base.errors import UserError
from spotd.domain.container import container_of
from spotd.domain.datasets import DataSet
from spotd.domain.events import AuditOutcome
from spotd.domain.fast_replace import changed
from spotd.domain.images import baked_of
from spotd.domain.job import Desired, HeadSnapshot, Job
from spotd.domain.node import EffectKind, Node
from spotd.domain.node_history import UNKNOWN, FleetHistory
from spotd.domain.plan import Effect
from spotd.domain.units import S
from spotd.domain.view import View
from spotd.planner.core.checkpoint_interval import WITHIN_S, CheckpointTerms, terms_of
from spotd.planner.core.expiry import expiry_tags, life_limit_s
from spotd.planner.core.next_effect import CALL_DEADLINE_S, claim_for, last_start_us
from spotd.planner.core.node_bootstrap import addresses_of, agent_config, start_document
from spotd.planner.core.node_names import gang_name, machine_tags
from spotd.planner.core.reservation_end import with_ends
from spotd.planner.core.shard_stores import StorePlace, gb_microusd, place_among, place_of
from spotd.planner.offers.cooldowns import refusal_code
from spotd.security.secrets import JobKeys, host_key
from spotd.store.audit import AuditRow
from spotd.store.interface import Store
from spotd.store.outputs import OUTPUTS_SKIPPED
from spotd.wire import Bucket, Command
from spotd.wire.printed_steps import PrintedSteps, merge_printed_steps

RECORD_S = 1.0  # of a call's time, for its outcome to be recorded

Record = Callable[[], None]

MAX_PAUSE_S = 300.0  # no cloud keeps a machine from being ended for longer


class NotConfiguredError(Exception):
    """The configuration lost the cloud that a node is in: no call is made."""

    scope = Scope.PROVIDER


class LeaseRefusedError(Exception):
    """A machine there could not get its store credentials, so it is not requested."""

    scope = Scope.OFFER


@dataclass(frozen=True)
class JobStores:
    """The checkpoint stores of jobs, and the data that jobs read.

    `open(url)` opens a job's authority store, `options(url)` are a node's options to open it.
    `places()` are the places of the configured stores, `shards()` those that accept shards,
    `datasets()` the declared data sets.
    """

    open: Callable[[str], ObjectStore]
    options: Callable[[str], Mapping[str, str]]
    places: Callable[[], Mapping[str, StorePlace]] = dict
    shards: Callable[[], tuple[str, ...]] = tuple
    datasets: Callable[[], Mapping[str, DataSet]] = dict


@dataclass(frozen=True)
class NodeStoreAccess:
    """Access of a node to stores (act/credential_leases.py).

    `buckets(job, node)` are the buckets that the node copies, `shards_for(job, node, deadline_s)`
    the stores besides the job's own. `lend(job, node, deadline_s)` leases store credentials to a
    machine without a right of its own, and `lendable(job, node)` raises LeaseRefusedError if that
    cannot work.
    """

    buckets: Callable[[Job, Node], tuple[Bucket, ...]] = lambda job, _node: job.spec.files.buckets
    shards_for: LendShards = lambda _job, _node, _deadline_s: ShardLeases()
    lend: Lend = lambda _job, _node, _deadline_s: None
    lendable: Callable[[Job, Node], None] = lambda _job, _node: None


@dataclass(frozen=True)
class DaemonCondition:
    """Since when the daemon runs and receives, and the reasons why it may not act.

    `started_at_us` is when this daemon started, `listening_since()` since when it receives from
    nodes without a gap, `answering_since()` since when a cloud that was unavailable answers again.
    `reached_since()` is since when machines behind a jump host can be reached, `unreached()` why
    they cannot. `safe_until()` is the end of safe mode, `contested()` why the daemon may do nothing
    at all.
    """

    started_at_us: int = 0
    listening_since: Callable[[], int] = lambda: 0
    answering_since: Callable[[], Mapping[str, int]] = dict
    reached_since: Callable[[], Mapping[str, int]] = dict
    unreached: Callable[[], Mapping[str, str]] = dict
    safe_until: Callable[[], int] = lambda: 0
    contested: Callable[[], str] = str


@dataclass(frozen=True)
class EffectContext:
    """Everything that an effect may use; built by the daemon or the simulator.

    `survey(provider)` lists a cloud and shares the call with concurrent callers.
    `past(now_us)` is the fleet's history, `tools()` the parts of the saver's environment.
    """

    store: Store
    providers: Mapping[str, Provider]
    link: NodeLink
    packages: ObjectStore
    clock: Clock
    deployment: str
    survey: Callable[[str], Record]
    keys: Callable[[str], JobKeys]
    secrets: Callable[[str], Mapping[str, str]]
    job_stores: JobStores
    store_access: NodeStoreAccess = field(default_factory=NodeStoreAccess)
    condition: DaemonCondition = field(default_factory=DaemonCondition)
    past: Callable[[int], FleetHistory] = lambda _now_us: UNKNOWN
    tools: Callable[[], SaverPackages] = SaverPackages


def effects_of(view: View, armed: Collection[str], now_us: int) -> list[Effect]:
    """The calls of the nodes `armed` in the commit just made at `now_us`, in the order of the
    nodes. Pure."""
    effects = []
    for node in view.nodes:
        if node.call.effect is None or node.id not in armed:
            continue
        data: dict[str, object] = {}
        if node.call.effect is EffectKind.START:
            claim, deadline_s = claim_for(node, with_ends(view, now_us), now_us)
            gang = [n for n in view.nodes if n.generation == node.generation and n.chosen]
            gang = gang if node.chosen else [node]  # it has no rank among them yet
            data = {
                "hold": not node.chosen,
                "claim": claim,
                "claim_deadline_s": deadline_s,
                "node_ips": addresses_of(gang),
            }
            data["suspect"] = view.setbacks.suspect
        effects.append(Effect(node.call.effect, node, view.job, node.call.effect_due_at_us, data))
    return effects


def call(effect: Effect, world: EffectContext) -> Record:
    """Make the call; return a function that records its outcome. Raises the errors of the daemon's
    own store, and bugs."""
    node, store, clock = effect.node, world.store, world.clock
    try:
        return _CALLS[effect.kind](effect, world)
    except (
        CapacityError,
        QuotaError,
        PriceError,
        RejectedError,
        AuthError,
        UnpreparedError,
        NotConfiguredError,
        LeaseRefusedError,
    ) as error:
        return partial(_record_refusal, effect, world, error)
    except (ProviderError, LinkError, ObjectStoreError, wire.WireError, UserError) as error:
        # A UserError is a key or a secret that cannot be read any more.
        text = f"{type(error).__name__}: {error}"
        asked_s = error.retry_after_s if isinstance(error, ThrottledError) else 0.0
        pause_s = min(asked_s, MAX_PAUSE_S)
        return lambda: store.nodes.record_effect_failed(
            node.id, effect.kind, text, clock.now_us(), pause_s
        )


def _record_refusal(
    effect: Effect,
    world: EffectContext,
    error: ProviderError | NotConfiguredError | LeaseRefusedError,
) -> None:
    node, at_us = effect.node, world.clock.now_us()
    if isinstance(error, AuthError):
        world.store.market.record_provider(node.offer.provider, str(error), at_us)
    if effect.kind is EffectKind.LAUNCH:
        code = refusal_code(type(error).__name__, effect.job.spec.resources.image_id)
        world.store.nodes.record_launch_refused(node.id, code, str(error), error.scope, at_us)
    else:
        world.store.nodes.record_effect_failed(node.id, effect.kind, str(error), at_us)


def launch_request(effect: Effect, keys: JobKeys, deployment: str) -> LaunchRequest:
    """Return the create request of a node, from committed values, so that a retry is the same
    request."""
    node, job = effect.node, effect.job
    host = host_key(keys, node.token)
    # A machine by itself has nobody to talk to; cards of a fabric would cost it its public address.
    joined = job.spec.resources.num_nodes > 1 and bool(node.offer.interconnect)
    return LaunchRequest(
        token=node.token,
        name=node.token,
        region=node.offer.region,
        zone=node.offer.zone,
        instance_type=node.offer.instance_type,
        capacity_type=node.offer.capacity_type,
        tags={
            **machine_tags(
                deployment,
                job_id=job.id,
                generation=node.generation,
                rank=node.rank,
                token=node.token,
            ),
            **expiry_tags(node),
        },
        ssh_user="spotd",
        ssh_public_key=keys.user.public,
        host_private_key=host.private,
        host_public_key=host.public,
        image_id=node.startup.image_id
        or ("" if baked_of(job.spec.resources.image_id) else job.spec.resources.image_id),
        disk_gib=job.spec.resources.disk_gib,
        max_price_microusd_per_h=job.spec.limits.max_hourly_microusd,
        max_run_s=life_limit_s(node),
        reservation=node.offer.reservation,
        interconnect=node.offer.interconnect if joined else "",
        gang=gang_name(deployment, node) if joined else "",
    )


def _provider(effect: Effect, world: EffectContext) -> Provider:
    """The cloud that the node is in. Raises NotConfiguredError."""
    name = effect.node.offer.provider
    provider = world.providers.get(name)
    if provider is None:
        raise NotConfiguredError(not_configured(name))
    return provider


def not_configured(provider: str) -> str:
    """Return the message about a provider that the configuration no longer has."""
    return f"{provider} is no longer configured: add [providers.{provider}] again"


def _launch(effect: Effect, world: EffectContext) -> Record:
    node = effect.node
    request = launch_request(effect, world.keys(node.job_id), world.deployment)
    world.store_access.lendable(effect.job, node)
    if world.clock.now_us() > last_start_us(effect.kind, effect.deadline_us):
        raise LinkError("it took too long to check whether credentials for its store can be leased")
    outcome = _provider(effect, world).launch(request)

    def record() -> None:
        if isinstance(outcome, Launched):
            world.store.nodes.record_launched(node.id, outcome.instance_id, world.clock.now_us())

    return record


def _resolve(effect: Effect, world: EffectContext) -> Record:
    """Look a launch up by its token.

    Absence is certain only when no launch can be in flight and the cloud's listing lag has passed
    since.
    """
    node, provider = effect.node, _provider(effect, world)
    asked_at_us = world.clock.now_us()
    listed = provider.list()
    certain_s = CALL_DEADLINE_S[EffectKind.LAUNCH] + provider.visibility_s

    def record() -> None:
        now_us = world.clock.now_us()
        lag_s = provider.visibility_s
        world.store.instances.record_listing(provider.name, listed, asked_at_us, now_us, lag_s)
        known = any(instance.token == node.token for instance in listed)
        if not known and asked_at_us - node.departure.left_at_us > certain_s * S:
            world.store.nodes.record_absent(node.id, now_us)

    return record


def _survey(effect: Effect, world: EffectContext) -> Record:
    return world.survey(_provider(effect, world).name)


def _left_s(effect: Effect, world: EffectContext) -> float:
    """Return the time left for the call: its outcome has to be recorded before that."""
    return (effect.deadline_us - world.clock.now_us()) / S - RECORD_S


def _boot(effect: Effect, world: EffectContext) -> Record:
    node, provider = effect.node, _provider(effect, world)
    config = agent_config(world.deployment, effect.job, node, provider, world.clock.now_us())
    world.link.boot(node, world.keys(node.job_id), config, _left_s(effect, world))
    return lambda: world.store.nodes.record_booted(node.id, world.clock.now_us())


def _image(effect: Effect, world: EffectContext) -> Record:
    return image_builder.take_step(effect, _provider(effect, world), world, _left_s(effect, world))


def _printed_before(node: Node, world: EffectContext) -> PrintedSteps:
    """Return the steps that the job's program printed in earlier attempts."""
    earlier = [one for one in world.store.nodes.of_job(node.job_id) if not one.rank]
    return merge_printed_steps(
        *(one.training.printed_steps for one in earlier if one.generation < node.generation)
    )


def _start(effect: Effect, world: EffectContext) -> Record:
    node, job = effect.node, effect.job
    keys = world.keys(job.id)
    for mount in job.spec.files.packages:
        left_s = _left_s(effect, world)
        world.link.put_package(node, keys, mount.digest, world.packages, left_s)
    tools = SaverPackages() if node.offer.local else world.tools()
    send_tools(world.link, node, keys, tools, world.packages, lambda: _left_s(effect, world))
    loan = world.store_access.lend(job, node, _left_s(effect, world))
    options = loan.options if loan else world.job_stores.options(job.spec.checkpoint.store)
    shards = world.store_access.shards_for(job, node, _left_s(effect, world))
    digest = (
        world.store.events.image_digest(job.id) if container_of(job.spec.resources.image_id) else ""
    )
    now_us, auto = world.clock.now_us(), job.spec.checkpoint.auto
    where = place_of(job.spec.checkpoint.store, options)
    place = place_among(shards.url, world.job_stores.places()) if shards.url else where
    terms = terms_for(job, node, world.store, place, now_us) if auto else None
    document = start_document(job, effect, _secrets(effect, world), options, digest, terms)
    document = changed(
        document,
        buckets=world.store_access.buckets(job, node),
        shards_url=shards.url,
        shard_stores=shards.stores,
        tools=tools.digest,
        printed_steps=_printed_before(node, world),
    )
    _send(effect, world, Command(wire.START, node.generation, document.to_data()))
    claim = str(effect.data["claim"])

    def record() -> None:
        if times := first_to_end(loan, shards):
            world.store.nodes.record_credential_lease(node.id, *times)
        world.store.nodes.record_acknowledged(node.id, effect.kind, world.clock.now_us(), claim)

    return record


def _secrets(effect: Effect, world: EffectContext) -> Mapping[str, str]:
    """Return the job's secrets, recorded as used before they leave the box."""
    job, node = effect.job, effect.node
    secrets = world.secrets(job.id)
    if secrets:
        text = f"{', '.join(sorted(secrets))} to {node.id}"
        now_us = world.clock.now_us()
        row = AuditRow(now_us, -1, "spotd", "secrets read", job.name, AuditOutcome.DONE, text)
        world.store.audit.add(row)
    return secrets


def _tell(name: str, effect: Effect, world: EffectContext) -> Record:
    node = effect.node
    data = {
        "reason": node.departure.leave_text,
        "deadline_s": effect.job.spec.timeouts.stop_grace_s,
    }
    if effect.kind is EffectKind.DRAIN:
        data["outputs_s"] = _outputs_s(effect, world)
    if effect.kind is EffectKind.SAVE:
        data["final"] = (
            node.training.exit_code == wire.EXIT_FINISHED
        )  # the last word of a gang of scripts
    _send(effect, world, Command(name, node.generation, data))
    return lambda: world.store.nodes.record_acknowledged(node.id, effect.kind, world.clock.now_us())


def _outputs_s(effect: Effect, world: EffectContext) -> float:
    """Return how long the machine may store its files after the stop; 0: not at all."""
    job = effect.job
    skips = job.desired is Desired.CANCEL and world.store.events.last(job.id, OUTPUTS_SKIPPED)
    return 0.0 if skips else wire.OUTPUTS_LIMIT_S


def _send(effect: Effect, world: EffectContext, command: Command) -> None:
    keys = world.keys(effect.node.job_id)
    reply = world.link.send(effect.node, keys, command, _left_s(effect, world))
    if not reply.ok:
        raise LinkError(f"{command.name} refused: {reply.error}")


def _read_head(effect: Effect, world: EffectContext) -> Record:
    # Before it is read: what happens meanwhile may not be in what is read.
    job, read_at_us = effect.job, world.clock.now_us()
    try:
        seen = read_head(world.job_stores.open(job.spec.checkpoint.store), job.id, read_at_us)
    except NotFoundError:
        if job.head is not None and job.head.generation:
            raise  # it was there: this is the store's trouble
        times = {"seen_at_us": read_at_us, "read_at_us": read_at_us}
        nobody = HeadSnapshot(0, 0, "", released=False, final=False, **times)
        return lambda: world.store.jobs.record_head(job.id, nobody)
    return partial(record_head, world.store, job, seen)


def _terminate(effect: Effect, world: EffectContext) -> Record:
    node, provider = effect.node, _provider(effect, world)
    event = None
    if serial_console.wanted(node):
        event = serial_console.ask(node, provider, lambda: world.secrets(node.job_id).values())
    provider.terminate(node.instance_id)

    def record() -> None:
        if event is not None:
            world.store.events.add(node.job_id, event, world.clock.now_us())
        world.store.nodes.record_acknowledged(node.id, effect.kind, world.clock.now_us())

    return record


_CALLS: dict[EffectKind, Callable[[Effect, EffectContext], Record]] = {
    EffectKind.LAUNCH: _launch,
    EffectKind.RESOLVE: _resolve,
    EffectKind.SURVEY: _survey,
    EffectKind.BOOT: _boot,
    EffectKind.START: _start,
    EffectKind.RELEASE: partial(_tell, wire.RELEASE),
    EffectKind.DRAIN: partial(_tell, wire.DRAIN),
    EffectKind.SAVE: partial(_tell, wire.SAVE),
    EffectKind.READ_HEAD: _read_head,
    EffectKind.IMAGE: _image,
    EffectKind.TERMINATE: _terminate,
}


def terms_for(
    job: Job, node: Node, store: Store, place: StorePlace, now_us: int
) -> CheckpointTerms:
    """The terms for a program that chooses its own checkpoint interval. `place` is where the
    machine's shards go. Raises StoreError."""
    lives = store.node_history.observed_lifetimes(now_us - int(WITHIN_S * S))
    gb = gb_microusd(node.offer, place, first_tier_prices())
    storage_price = storage_prices().get(place.cloud)
    put = storage_price.microusd_per_1000_writes / 1000 if storage_price else None
    return terms_of(node.offer, lives, job.spec.resources.num_nodes, gb, put)
