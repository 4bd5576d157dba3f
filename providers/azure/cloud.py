"""The adapter: the verbs of the port, spoken to Azure Resource Manager."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from providers import cloudinit
from providers.azure import renewal
from providers.azure.clients import Clients
from providers.azure.creating import GONE, PATIENT, Creation, Pace
from providers.azure.launch import (
    IMAGE,
    Site,
    availability_set,
    machine_name,
    shares_fabric,
    virtual_machine,
)
from providers.azure.leftovers import Leftovers
from providers.azure.listing import (
    DEPLOYMENT_TAG,
    TOKEN_TAG,
    host_of,
    key_of,
    private_hosts,
    public_hosts,
    read_instance,
    tags_of,
    views_of,
)
from providers.azure.market import Market
from providers.base import (
    Instance,
    InstanceState,
    Launched,
    LaunchRequest,
    Leftover,
    Notice,
    Offer,
    OfferRequest,
    Pending,
    UnknownOutcome,
)

DOCKER = "docker:"
# Sizes that a job for GPUs may run on; others are named in the configuration.
PATTERNS = ("Standard_ND*", "Standard_NC*", "Standard_NV*A10*")
MOST_NAMES = 10_000  # of machines that this process has seen

Row = Mapping[str, Any]
Machines = list[tuple[Row, Row | None]]  # with their instance views, where these are known


@dataclass(frozen=True)
class Settings:
    """[providers.NAME] of the configuration. `image` is "publisher:offer:sku:version" or an id;
    `network` is "public", or "private" and "jump", where machines have no address of the internet;
    `node_identity` is the resource id of the machines' user assigned identity. The endpoints and
    `authority`, where tokens come from, are those of the public cloud unless they are given."""

    subscription_id: str
    resource_group: str
    regions: Sequence[str]
    instance_types: Sequence[str] = PATTERNS
    image: str = IMAGE
    network: str = "public"
    node_identity: str = ""
    endpoint: str = ""
    authority: str = ""
    prices_endpoint: str = ""
    timeout_s: float = 10.0
    pace: Pace = PATIENT


class AzureCloud:
    """Machines in one resource group, which is the deployment's own, in some regions."""

    local = False
    watcher = "azure"
    limits_life = False
    # A machine that switches itself off stays allocated, and is paid for until it is deleted.
    power_off: tuple[str, ...] = ()
    prepared_file = cloudinit.STATE
    # Azure promises nothing; its lists are answered from caches, mostly seconds old.
    visibility_s = 60.0

    def __init__(self, name: str, deployment: str, **settings: Any) -> None:
        """`settings` are those of `Settings`."""
        given = Settings(**settings)
        self.name = name
        self._deployment = deployment
        self._group = given.resource_group
        self._public = given.network == "public"
        self._clients = Clients(
            given.subscription_id,
            given.endpoint,
            given.authority,
            given.prices_endpoint,
            given.timeout_s,
        )
        self._site = Site(
            given.subscription_id, self._group, given.image, self._public, given.node_identity
        )
        self._market = Market(self._clients, name, tuple(given.regions), given.instance_types)
        self._creation = Creation(self._clients, self._group, given.pace)
        self._leftovers = Leftovers(
            self._clients,
            self._group,
            deployment,
            self._machines,
            self._creation.find,
            self._creation.delete,
        )
        self._seen = Seen()

    def offers(self, request: OfferRequest) -> Sequence[Offer]:
        """What fits and is on sale now, with retail prices no older than an hour."""
        return [offer for offer in self._market.offers() if request.admits(offer)]

    def launch(self, request: LaunchRequest) -> Launched | Pending:
        """One PUT, which makes what is not there and changes nothing that is. What this process has
        seen to exist is never made a second time: Azure has forgotten a name as soon as its machine
        is gone."""
        name = machine_name(request.token)
        tags = {**request.tags, DEPLOYMENT_TAG: self._deployment, TOKEN_TAG: request.token}
        image = "" if request.image_id.startswith(DOCKER) else request.image_id
        body = virtual_machine(request, tags, self._site, cloudinit.user_data(request), image)
        if name in self._seen:
            return self._launched_before(name, body)
        if shares_fabric(request):
            self._make_set(request, tags)
        outcome = self._creation.create(name, body)
        if isinstance(outcome, Launched):
            self._seen.add([name])
        return outcome

    def terminate(self, instance_id: str) -> None:
        """End a machine, and with it its card, its address and its disk; an unknown id, and one
        that ends already, are success."""
        self._creation.delete(instance_id)

    def list(self) -> Sequence[Instance]:
        """Every machine of ours in the group, creates that failed included: three questions (the
        machines, their run time status, the addresses), however many machines there are."""
        machines = self._machines()
        rows = [(row, view) for row, view in machines if self._is_ours(row)]
        hosts = self._hosts() if rows else {}
        found = [read_instance(row, view, host_of(row, hosts)) for row, view in rows]
        self._seen.add(one.instance_id for one in found if one.state is not InstanceState.FAILED)
        return found

    def notices(self) -> Sequence[Notice]:
        """None: what Azure tells from outside (the activity log) comes minutes after the 30 seconds
        that a machine has; the machine itself hears of its end by its metadata service."""
        return []

    def renew(self, instance_id: str, expires_at_us: int) -> None:
        """Move the expiry tag on; an unknown id, and a machine that ends, are success."""
        renewal.renew(self._clients, self._group, self._creation.find, instance_id, expires_at_us)

    def leftovers(self) -> Sequence[Leftover]:
        """Disks, cards and addresses of ours that hang on nothing, and creates that failed."""
        return [*self._leftovers.look()]

    def discard(self, leftover_id: str) -> None:
        """Delete one; Azure itself refuses what hangs on a machine."""
        self._leftovers.discard(leftover_id)

    def _make_set(self, request: LaunchRequest, tags: Mapping[str, str]) -> None:
        """The availability set of a gang, which every rank of it asks for."""
        body = availability_set(request, tags)
        self._clients.compute(
            lambda c: c.availability_sets.create_or_update(self._group, request.gang, body)
        )

    def _launched_before(self, name: str, body: dict[str, Any]) -> Launched | Pending:
        try:
            return self._creation.look(name, body)
        except UnknownOutcome as error:
            if error.code == GONE:
                return Launched(name)  # it has been; its end is what the listing says
            raise

    def _machines(self) -> Machines:
        """Every machine of the group with its instance view. Azure tells the views of machines that
        are in no scale set for a whole subscription only, and nothing but them."""
        rows = self._clients.compute(
            lambda c: [one.as_dict() for one in c.virtual_machines.list(self._group)]
        )
        if not rows:
            return []
        statuses = self._clients.compute(
            lambda c: [one.as_dict() for one in c.virtual_machines.list_all(status_only="true")]
        )
        views = views_of(statuses)
        return [(row, views.get(key_of(row))) for row in rows]

    def _hosts(self) -> dict[str, str]:
        if self._public:
            return public_hosts(
                self._clients.network(
                    lambda c: [one.as_dict() for one in c.public_ip_addresses.list(self._group)]
                )
            )
        return private_hosts(
            self._clients.network(
                lambda c: [one.as_dict() for one in c.network_interfaces.list(self._group)]
            )
        )

    def _is_ours(self, row: Row) -> bool:
        return tags_of(row).get(DEPLOYMENT_TAG) == self._deployment


class Seen:
    """Names of machines that this process knows to have existed, the latest of them."""

    def __init__(self, most: int = MOST_NAMES) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._names: dict[str, None] = {}

    def add(self, names: Iterable[str]) -> None:
        """These as well."""
        with self._lock:
            for name in names:
                self._names.pop(name, None)
                self._names[name] = None
            for name in list(self._names)[: max(0, len(self._names) - self._most)]:
                del self._names[name]

    def __contains__(self, name: str) -> bool:
        return name in self._names
