"""Lease store credentials to machines of other clouds.

They are created for one job's folder, handed over on SSH stdin, and renewed before they expire. See
planner/core/credential_lease.py for when.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Protocol

import structlog

from providers.base import ProviderError
from providers.credential_leases import CredentialIssuer, LeasedCredentials
from providers.iam.policy import NODE_FOLDER, StorePrefix, parse_store_url
from providers.stores.base import SECRET_OPTIONS, StoreUnavailableError
from spotd.act.effects import LeaseRefusedError
from spotd.act.lease_records import Lease, ShardLeases, first_to_end
from spotd.act.node_link import LinkError
from spotd.base.clock import Clock
from spotd.base.errors import UserError
from spotd.domain.datasets import DataSet
from spotd.domain.events import AuditOutcome, Event, Severity
from spotd.domain.job import Job
from spotd.domain.node import Node
from spotd.domain.units import S
from spotd.planner.core.credential_lease import (
    AccessMethod,
    StoreAccess,
    left_h,
    lent_late,
    renew_us,
    way_to,
)
from spotd.planner.core.shard_stores import StorePlace as Spot
from spotd.planner.core.shard_stores import (
    may_have_shards,
    near_store,
    place_among,
    saves_shards,
    way_of,
)
from spotd.security.secrets import JobKeys
from spotd.store.audit import AuditRow
from spotd.store.interface import Store
from spotd.wire import Bucket, ShardStore

log = structlog.get_logger(__name__)

LANES = 8  # machines that are seen at once
CALL_S = 20.0  # for one machine
TRUST_S = 300.0  # what could be lent a moment ago can be lent now


class LeaseLink(Protocol):
    """The part of act/link.py that leases need."""

    def lend(
        self, node: Node, keys: JobKeys, lent: LeasedCredentials, deadline_s: float, store: str = ""
    ) -> str: ...


class CredentialLeases:
    """Creates and renews leases.

    `access_of(url)` is the configured access to a store, `lender_of(url)` its credential issuer,
    `options_of(url)` the box's own options. `known()` are the places of the configured stores, with
    those that accept shards. `datasets()` are the declared data sets by name.
    """

    def __init__(
        self,
        access_of: Callable[[str], StoreAccess],
        lender_of: Callable[[str], CredentialIssuer | None],
        options_of: Callable[[str], Mapping[str, str]],
        link: LeaseLink,
        keys: Callable[[str], JobKeys],
        clock: Clock,
        known: Callable[[], tuple[Mapping[str, Spot], Sequence[str]]] = lambda: ({}, ()),
        datasets: Callable[[], Mapping[str, DataSet]] = dict,
    ) -> None:
        self._datasets = datasets
        self._known = known
        self._access_of = access_of
        self._lender_of = lender_of
        self._options_of = options_of
        self._link = link
        self._keys = keys
        self._clock = clock
        self._paged: set[str] = set()
        self._could: dict[str, int] = {}  # store -> when something was last lent of it

    def check(self, job: Job, node: Node) -> None:
        """Check before the launch that the machine can get its leases. Raises LeaseRefusedError.

        Otherwise it, and each of its replacements, would be useless.
        """
        url = job.spec.checkpoint.store
        lent = self.way(url, node.offer.cloud or node.offer.provider) is AccessMethod.LENT
        if lent and self._clock.now_us() - self._could.get(url, 0) > TRUST_S * S:
            try:
                self._made(url, job.id)
            except StoreUnavailableError as error:
                raise LeaseRefusedError(str(error)) from None

    def begin(self, store: Store, job: Job, node: Node, deadline_s: float) -> Lease | None:
        """Create the lease before the program starts, recorded first.

        None for a machine with its own rights or keys; one that exchanges its identity only needs
        the options. Raises StoreUnavailableError if none can be made, LinkError, and the store's
        errors.
        """
        return self._begin(store, job, node, job.spec.checkpoint.store, deadline_s)

    def _begin(
        self, store: Store, job: Job, node: Node, url: str, deadline_s: float
    ) -> Lease | None:
        access = self._access_of(url)
        cloud = node.offer.cloud or node.offer.provider
        way = way_to(access, cloud)
        if way is AccessMethod.PROOF:
            own = {"identity": cloud, "session": f"spotd-{job.id}", **access.proof}
            return Lease({**self._plain_options(access.url), **own}, 0, 0)
        if way is not AccessMethod.LENT:
            return None
        text = f"credentials of {job_place(access.url, job.id).prefix} to {node.id}"
        now_us = self._clock.now_us()
        row = AuditRow(now_us, -1, "spotd", "store lent", job.name, AuditOutcome.DONE, text)
        store.audit.add(row)
        file, loan = self._lend(job, node, url, deadline_s)
        options = {**self._plain_options(access.url), "credentials_file": file}
        return Lease(options, loan.at_us, loan.until_us)

    def shards(self, store: Store, job: Job, node: Node, deadline_s: float) -> ShardLeases:
        """Return the stores beside the job's own that may hold its shards, with the machine's
        access.

        A store for which no lease can be made now is left out with an event if no machine of the
        job was near it: this machine saves to the job's own store. Otherwise the last checkpoint
        may need the store, and this raises like `begin`.
        """
        places, configured = self._known()
        urls = may_have_shards(job.spec, configured)
        if not urls or not saves_shards(job.spec):
            return ShardLeases()
        before = {
            (one.offer.cloud or one.offer.provider, one.offer.region)
            for one in store.nodes.of_job(job.id)
            if one.generation < node.generation
        }

        def give(url: str) -> tuple[ShardStore, Lease | None] | StoreUnavailableError:
            try:
                loan = self._begin(store, job, node, url, deadline_s)
            except StoreUnavailableError as error:
                if place_among(url, places)[:2] in before:
                    raise
                return error
            return ShardStore(url, loan.options if loan else self._options_of(url)), loan

        with ThreadPoolExecutor(min(LANES, len(urls)), thread_name_prefix="shards") as lanes:
            given = dict(zip(urls, lanes.map(give, urls), strict=True))
        leased = {}
        for url, one in given.items():
            if isinstance(one, StoreUnavailableError):
                store.events.add(job.id, _without(node, url, one), self._clock.now_us())
            else:
                leased[url] = one
        own = near_store(node.offer, job.spec, places, configured)[0]
        at_us, until_us = first_to_end(*(loan for _, loan in leased.values())) or (0, 0)
        stores = tuple(one for one, _ in leased.values())
        return ShardLeases(own if own in leased else "", stores, at_us, until_us)

    def buckets(self, job: Job, node: Node) -> tuple[Bucket, ...]:
        """Return the job's file mounts with the node's credentials for each.

        Keys if [stores] has some for machines, otherwise the machine's identity. Nothing is leased
        here, because leases can write.
        """
        return tuple(self._bucket(bucket, node) for bucket in job.spec.files.buckets)

    def _bucket(self, one: Bucket, node: Node) -> Bucket:
        cloud = node.offer.cloud or node.offer.provider
        scheme, _, name = one.url.partition("://")
        if scheme != "dataset":
            return replace(one, options=self._bucket_options(one.url, cloud))
        data = self._datasets().get(name)
        if data is None:
            text = f"data set {name} is no longer configured: add [datasets.{name}] again"
            raise StoreUnavailableError(text)
        way = way_of(data, node.offer, self._known()[0])
        return replace(
            way,
            target=one.target,
            mode=one.mode,
            cache_bytes=one.cache_bytes,
            options=self._bucket_options(way.url, cloud),
            near_options=self._bucket_options(way.near, cloud) if way.near else {},
        )

    def _bucket_options(self, url: str, cloud: str) -> Mapping[str, str]:
        access = self._access_of(url)
        match way_to(access, cloud):
            case AccessMethod.KEYS:
                return self._options_of(url)
            case AccessMethod.PROOF:
                return {**self._plain_options(url), "identity": cloud, **access.proof}
            case _:
                return self._plain_options(url)

    def _plain_options(self, url: str) -> dict[str, str]:
        """Return the options with which the box opens the store, without its keys."""
        options = self._options_of(url).items()
        return {name: value for name, value in options if name not in SECRET_OPTIONS}

    def way(self, url: str, cloud: str) -> AccessMethod:
        """Return how machines of a cloud reach the store."""
        return way_to(self._access_of(url), cloud)

    def lasting_s(self, url: str) -> float:
        """Return the duration of a lease in seconds, by making one that is not used.

        Raises StoreUnavailableError.
        """
        lent = self._made(url, "doctor")
        return (lent.expires_at_us - self._clock.now_us()) / S

    def renew(self, store: Store) -> None:
        """Renew the leases that are due. Raises StoreError.

        A failure is retried at the next call and delays no other lease.
        """
        now_us = self._clock.now_us()
        nodes = store.nodes.active()
        self._paged &= {node.id for node in nodes}
        # A machine that is not to be reached would keep its lane for long: after the others.
        due = [node for node in nodes if 0 < renew_us(node) <= now_us]
        due.sort(key=lambda node: (node.agent.link_down_at_us > 0, node.lease.lent_until_us))
        if due:
            with ThreadPoolExecutor(min(LANES, len(due)), thread_name_prefix="lend") as lanes:
                list(lanes.map(lambda node: self._renew(store, node), due))

    def _renew(self, store: Store, node: Node) -> None:
        job = store.jobs.find(node.job_id)
        if job is None:
            return
        try:
            loans = [self._lend(job, node, url, CALL_S)[1] for url in self._lent_urls(job, node)]
        except (LinkError, StoreUnavailableError, UserError) as error:
            log.warning("credentials not renewed", node=node.id, error=str(error))
            now_us = self._clock.now_us()
            if lent_late(node, now_us) and node.id not in self._paged:
                store.events.add(node.job_id, _late(node, now_us, error), now_us)
                self._paged.add(node.id)
            return
        if times := first_to_end(*loans):
            store.nodes.record_credential_lease(node.id, *times)
        self._paged.discard(node.id)

    def _lent_urls(self, job: Job, node: Node) -> list[str]:
        """Return the stores of which the machine has credentials, its job's own store first."""
        cloud, own = node.offer.cloud or node.offer.provider, job.spec.checkpoint.store
        urls = [own]
        if saves_shards(job.spec):
            urls += may_have_shards(job.spec, self._known()[1])
        return [url for url in urls if self.way(url, cloud) is AccessMethod.LENT] or [own]

    def _lend(self, job: Job, node: Node, url: str, deadline_s: float) -> tuple[str, Lease]:
        at_us, keys = self._clock.now_us(), self._keys(job.id)
        lent = self._made(url, job.id)
        if url == job.spec.checkpoint.store:
            file = self._link.lend(node, keys, lent, deadline_s)
        else:
            file = self._link.lend(node, keys, lent, deadline_s, url)
        return file, Lease({}, at_us, lent.expires_at_us)

    def _made(self, url: str, job_id: str) -> LeasedCredentials:
        lender = self._lender_of(url)
        if lender is None:
            raise StoreUnavailableError(f"no credentials of {url} are lent any more: see [stores]")
        try:
            lent = lender.issue(job_place(url, job_id), job_id)
        except ProviderError as error:
            # The store's cloud says so, not the machine's.
            text = f"no credentials of {url} for the machine: {type(error).__name__}: {error}"
            self._could.pop(url, None)
            raise StoreUnavailableError(text) from None
        self._could[url] = self._clock.now_us()
        return lent


def job_place(url: str, job_id: str) -> StorePrefix:
    """Return the only place in a store that a machine of the job may touch."""
    place = parse_store_url(url)
    return StorePrefix(place.bucket, f"{place.prefix}{NODE_FOLDER}{job_id}/")


def _without(node: Node, url: str, error: Exception) -> Event:
    text = f"{node.instance_id} does without {url} ({error}): all its shards go to the job's store"
    return Event("shards_away", text, node.id, Severity.WARNING)


def _late(node: Node, now_us: int, error: Exception) -> Event:
    text = (
        f"the credentials of the checkpoint store on {node.instance_id} in "
        f"{node.offer.provider}/{node.offer.zone} cannot be renewed ({error}): it keeps "
        f"training, and saves for {left_h(node, now_us):.1f} h more"
    )
    return Event("not_lent", text, node.id, Severity.ERROR, alert=True, key="not_lent")
