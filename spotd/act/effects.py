"""From committed state to calls, and from calls to recorded outcomes.

`effects_of` is pure: it reads what the commit just made has armed. `call` makes one
call and returns how to record what came of it; neither decides anything. Whatever is not recorded
simply becomes due again, with the same token.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

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
from providers.stores.base import NotFoundError, ObjectStore
from providers.stores.base import StoreError as ObjectStoreError
from spotd import wire
from spotd.act.heads import read_head
from spotd.clock import Clock
from spotd.decide.bootstrap import agent_config, start_document
from spotd.decide.expiry import expiry_tags, life_limit_s
from spotd.decide.needs import CALL_DEADLINE_S, claim_for
from spotd.decide.preemptions import CADENCE, MANY, preemptions_lately
from spotd.errors import UserError
from spotd.model import EffectKind, HeadSeen, Job, Node, S, View
from spotd.plan import Effect
from spotd.store.base import AuditOutcome, AuditRow, Store
from spotd.vault import JobKeys, host_key
from spotd.wire import AgentConfig, Command, Reply

RECORD_S = 1.0  # of a call's time, for its outcome to be recorded

Record = Callable[[], None]

MAX_PAUSE_S = 300.0  # no cloud keeps a machine from being ended for longer


class LinkError(Exception):
    """The node could not be reached, refused, or did not answer in time."""


class NotConfiguredError(Exception):
    """The configuration lost the cloud that a node is in: no call is made."""

    scope = Scope.PROVIDER


class NodeLink(Protocol):
    """SSH to nodes, as act/link.py keeps it. Every method may raise `LinkError`, also when all that
    it does, the connection included, takes longer than `deadline_s`."""

    def boot(self, node: Node, keys: JobKeys, config: AgentConfig, deadline_s: float) -> None: ...

    def put_package(
        self, node: Node, keys: JobKeys, digest: str, source: ObjectStore, deadline_s: float
    ) -> None: ...

    def send(self, node: Node, keys: JobKeys, command: Command, deadline_s: float) -> Reply: ...


@dataclass(frozen=True)
class World:
    """Everything an effect may touch; given by the daemon, or by a simulator.

    `survey(provider)` lists a cloud, sharing the call with others who ask at the same time.
    `open_store(url)` opens a job's authority store, `store_options(url)` is what a node needs to
    open it. `started_at_us` is when this daemon started, `listening_since()` since when it hears
    nodes without a gap, `answering_since()` since when a cloud that was away answers again,
    `safe_until()` until when it is in safe mode, `contested()` why it may do nothing at all.
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
    open_store: Callable[[str], ObjectStore]
    store_options: Callable[[str], Mapping[str, str]]
    started_at_us: int = 0
    listening_since: Callable[[], int] = lambda: 0
    answering_since: Callable[[], Mapping[str, int]] = dict
    safe_until: Callable[[], int] = lambda: 0
    contested: Callable[[], str] = str


def effects_of(view: View, armed: Collection[str], now_us: int) -> list[Effect]:
    """The calls of the nodes `armed` in the commit just made at `now_us`, in the order of the
    nodes. Pure."""
    found = []
    for node in view.nodes:
        if node.effect is None or node.id not in armed:
            continue
        data: dict[str, object] = {}
        if node.effect is EffectKind.START:
            claim, deadline_s = claim_for(node, view, now_us)
            gang = [n for n in view.nodes if n.generation == node.generation and n.chosen]
            ips = tuple(n.host for n in sorted(gang, key=lambda n: n.rank))
            often = preemptions_lately(view.attempts, now_us) >= MANY
            data = {"claim": claim, "claim_deadline_s": deadline_s, "node_ips": ips}
            data["cadence"] = CADENCE if often else 1.0
        found.append(Effect(node.effect, node, view.job, node.effect_due_at_us, data))
    return found


def call(effect: Effect, world: World) -> Record:
    """Make the call; what is returned records its outcome. Raises what the daemon's own store
    raises, and bugs."""
    node, store, clock = effect.node, world.store, world.clock
    try:
        return _CALLS[effect.kind](effect, world)
    except (
        *(CapacityError, QuotaError, PriceError, RejectedError, AuthError, UnpreparedError),
        NotConfiguredError,
    ) as error:
        return partial(_record_refusal, effect, world, error)
    except (ProviderError, LinkError, ObjectStoreError, wire.WireError, UserError) as error:
        # A UserError is a key or a secret that cannot be read any more.
        text = f"{type(error).__name__}: {error}"
        asked_s = error.retry_after_s if isinstance(error, ThrottledError) else 0.0
        pause_s = min(asked_s, MAX_PAUSE_S)
        return lambda: store.record_effect_failed(
            node.id, effect.kind, text, clock.now_us(), pause_s
        )


def _record_refusal(
    effect: Effect, world: World, error: ProviderError | NotConfiguredError
) -> None:
    node, at_us = effect.node, world.clock.now_us()
    if isinstance(error, AuthError):
        world.store.record_provider(node.offer.provider, str(error), at_us)
    if effect.kind is EffectKind.LAUNCH:
        code = type(error).__name__
        world.store.record_launch_refused(node.id, code, str(error), error.scope, at_us)
    else:
        world.store.record_effect_failed(node.id, effect.kind, str(error), at_us)


def launch_request(effect: Effect, keys: JobKeys, deployment: str) -> LaunchRequest:
    """The create request of a node: made of what is committed, so that a retry is the same."""
    node, job = effect.node, effect.job
    host = host_key(keys, node.token)
    return LaunchRequest(
        token=node.token,
        name=node.token,
        region=node.offer.region,
        zone=node.offer.zone,
        instance_type=node.offer.instance_type,
        capacity_type=node.offer.capacity_type,
        tags={
            "spotd-deployment": deployment,
            "spotd-job": job.id,
            "spotd-generation": str(node.generation),
            "spotd-rank": str(node.rank),
            "spotd-token": node.token,
            **expiry_tags(node),
        },
        ssh_user="spotd",
        ssh_public_key=keys.user.public,
        host_private_key=host.private,
        host_public_key=host.public,
        image_id=job.spec.image_id,
        disk_gib=job.spec.disk_gib,
        max_price_microusd_per_h=job.spec.max_hourly_microusd,
        max_run_s=life_limit_s(node),
    )


def _provider(effect: Effect, world: World) -> Provider:
    """The cloud that the node is in. Raises NotConfiguredError."""
    name = effect.node.offer.provider
    provider = world.providers.get(name)
    if provider is None:
        raise NotConfiguredError(not_configured(name))
    return provider


def not_configured(provider: str) -> str:
    """What to tell of a cloud that the configuration lost."""
    return f"{provider} is not configured any more: put [providers.{provider}] back"


def _launch(effect: Effect, world: World) -> Record:
    node = effect.node
    request = launch_request(effect, world.keys(node.job_id), world.deployment)
    outcome = _provider(effect, world).launch(request)

    def record() -> None:
        if isinstance(outcome, Launched):
            world.store.record_launched(node.id, outcome.instance_id, world.clock.now_us())

    return record


def _resolve(effect: Effect, world: World) -> Record:
    """Look up by token. Absent is only certain when no create can be in flight any more and the
    cloud's own listing lag has passed since."""
    node, provider = effect.node, _provider(effect, world)
    asked_at_us = world.clock.now_us()
    listed = provider.list()
    certain_s = CALL_DEADLINE_S[EffectKind.LAUNCH] + provider.visibility_s

    def record() -> None:
        now_us = world.clock.now_us()
        lag_s = provider.visibility_s
        world.store.record_listing(provider.name, listed, asked_at_us, now_us, lag_s)
        known = any(instance.token == node.token for instance in listed)
        if not known and asked_at_us - node.left_at_us > certain_s * S:
            world.store.record_absent(node.id, now_us)

    return record


def _survey(effect: Effect, world: World) -> Record:
    return world.survey(_provider(effect, world).name)


def _left_s(effect: Effect, world: World) -> float:
    """What is left of the call's time: its outcome is to be on record before it counts as lost and
    is made again beside it."""
    return (effect.deadline_us - world.clock.now_us()) / S - RECORD_S


def _boot(effect: Effect, world: World) -> Record:
    node, provider = effect.node, _provider(effect, world)
    config = agent_config(world.deployment, effect.job, node, provider, world.clock.now_us())
    world.link.boot(node, world.keys(node.job_id), config, _left_s(effect, world))
    return lambda: world.store.record_booted(node.id, world.clock.now_us())


def _start(effect: Effect, world: World) -> Record:
    node, job = effect.node, effect.job
    keys = world.keys(job.id)
    for mount in job.spec.packages:
        left_s = _left_s(effect, world)
        world.link.put_package(node, keys, mount.digest, world.packages, left_s)
    options = world.store_options(job.spec.checkpoint.store)
    document = start_document(job, effect, _secrets(effect, world), options)
    _send(effect, world, Command(wire.START, node.generation, document.to_data()))
    claim = str(effect.data["claim"])
    return lambda: world.store.record_told(node.id, effect.kind, world.clock.now_us(), claim)


def _secrets(effect: Effect, world: World) -> Mapping[str, str]:
    """The job's, on record before they leave the box."""
    job, node = effect.job, effect.node
    found = world.secrets(job.id)
    if found:
        text = f"{', '.join(sorted(found))} to {node.id}"
        now_us = world.clock.now_us()
        row = AuditRow(now_us, -1, "spotd", "secrets read", job.name, AuditOutcome.DONE, text)
        world.store.add_audit(row)
    return found


def _tell(name: str, effect: Effect, world: World) -> Record:
    node = effect.node
    data = {"reason": node.leave_text, "deadline_s": effect.job.spec.stop_grace_s}
    if effect.kind is EffectKind.SAVE:
        data["final"] = node.exit_code == wire.EXIT_FINISHED  # the last word of a gang of scripts
    _send(effect, world, Command(name, node.generation, data))
    return lambda: world.store.record_told(node.id, effect.kind, world.clock.now_us())


def _send(effect: Effect, world: World, command: Command) -> None:
    keys = world.keys(effect.node.job_id)
    reply = world.link.send(effect.node, keys, command, _left_s(effect, world))
    if not reply.ok:
        raise LinkError(f"{command.name} refused: {reply.error}")


def _read_head(effect: Effect, world: World) -> Record:
    # Before it is read: what happens meanwhile may not be in what is read.
    job, read_at_us = effect.job, world.clock.now_us()
    try:
        seen = read_head(world.open_store(job.spec.checkpoint.store), job.id, read_at_us)
    except NotFoundError:
        if job.head is not None and job.head.generation:
            raise  # it was there: this is the store's trouble
        times = {"seen_at_us": read_at_us, "read_at_us": read_at_us}
        nobody = HeadSeen(0, 0, "", released=False, final=False, **times)
        return lambda: world.store.record_head(job.id, nobody)
    return partial(_record_head, world, job, seen)


def _record_head(world: World, job: Job, seen: HeadSeen) -> None:
    """A generation is on record before anything is done for it: HEAD that is ahead of the record,
    as it is after HEAD was read, tells that the record is older than what goes on."""
    world.store.record_head(job.id, seen)
    now = world.store.find_job(job.id)
    if now is not None and seen.generation > now.generation:
        text = (
            f"HEAD of {job.name} is of generation {seen.generation}, and the record of the job "
            f"ends at {now.generation}: the database is older than the fleet"
        )
        world.store.set_quarantine(text, seen.read_at_us)


def _terminate(effect: Effect, world: World) -> Record:
    node = effect.node
    _provider(effect, world).terminate(node.instance_id)
    return lambda: world.store.record_told(node.id, effect.kind, world.clock.now_us())


_CALLS: dict[EffectKind, Callable[[Effect, World], Record]] = {
    EffectKind.LAUNCH: _launch,
    EffectKind.RESOLVE: _resolve,
    EffectKind.SURVEY: _survey,
    EffectKind.BOOT: _boot,
    EffectKind.START: _start,
    EffectKind.RELEASE: partial(_tell, wire.RELEASE),
    EffectKind.DRAIN: partial(_tell, wire.DRAIN),
    EffectKind.SAVE: partial(_tell, wire.SAVE),
    EffectKind.READ_HEAD: _read_head,
    EffectKind.TERMINATE: _terminate,
}
