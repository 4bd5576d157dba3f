"""The adapter: the verbs of the port, spoken to Azure Resource Manager."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from providers import cloud_init
from providers.azure import expiry_renewal
from providers.azure.addresses import Addresses
from providers.azure.clients import Clients
from providers.azure.codes import CODES, NOBODYS
from providers.azure.create_machine import GONE, Creation
from providers.azure.images import Images
from providers.azure.launch import (
    RegionSetup,
    availability_set,
    machine_name,
    shares_fabric,
    virtual_machine,
)
from providers.azure.leftovers import Leftovers
from providers.azure.listing import (
    DEPLOYMENT_TAG,
    TOKEN_TAG,
    key_of,
    read_instance,
    tags_of,
    views_of,
)
from providers.azure.market import Market
from providers.azure.readiness import ReadinessCheck
from providers.azure.settings import Settings
from providers.base import (
    CapacityType,
    Instance,
    InstanceState,
    Launched,
    LaunchRequest,
    Leftover,
    Notice,
    Offer,
    OfferRequest,
    Pending,
    ProviderError,
    UnknownOutcome,
)
from providers.fault_injection import Interruption, not_to_be_taken
from providers.images import Image
from providers.readiness import CapacityNeed, Finding
from providers.warnings import ProviderWarning

DOCKER = "docker:"
EVICTED_S = 2100.0  # the 30 minutes within which Azure evicts a machine on request, and some
MOST_NAMES = 10_000  # of machines that this process has seen

Row = Mapping[str, Any]
Machines = list[tuple[Row, Row | None]]  # with their instance views, where these are known


class AzureCloud:
    """Machines in one resource group, which is the deployment's own, in some regions."""

    local = False
    watcher = "azure"
    limits_life = False
    # A machine that switches itself off stays allocated, and is paid for until it is deleted.
    power_off: tuple[str, ...] = ()
    prepared_file = cloud_init.STATE
    interruption_usd = 0.0  # a simulation has no price
    # Azure promises nothing; its lists are answered from caches, mostly seconds old.
    visibility_s = 60.0

    def __init__(
        self, name: str, deployment: str, clients: Clients | None = None, **settings: Any
    ) -> None:
        """`settings` are those of `Settings`; `clients` those of another adapter with the same
        subscription, endpoints and patience, whose connections stand."""
        given = self._settings = Settings(**settings)
        self.name = name
        self._deployment = deployment
        self._group = given.resource_group
        public = given.network == "public"
        self._clients = clients or Clients(
            given.subscription_id,
            given.endpoint,
            given.authority,
            given.prices_endpoint,
            given.timeout_s,
        )
        self._site = RegionSetup(
            given.subscription_id, self._group, given.image, public, given.node_identity
        )
        self._market = Market(
            self._clients,
            name,
            tuple(given.regions),
            given.instance_types,
            reservations=given.reservations,
        )
        self._creation = Creation(self._clients, self._group, given.pace)
        self._leftovers = Leftovers(
            self._clients,
            self._group,
            deployment,
            self._machines,
            self._creation.find,
            self._creation.delete,
        )
        self._images = Images(
            self._clients, given.subscription_id, self._group, deployment, self._creation.find
        )
        self._addresses = Addresses(self._clients, self._group, public=public)
        self._seen = SeenNames()

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
        body = virtual_machine(request, tags, self._site, cloud_init.user_data(request), image)
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
        places = self._addresses.of([row for row, _ in rows])
        found = [
            read_instance(row, view, *place)
            for (row, view), place in zip(rows, places, strict=True)
        ]
        self._seen.add(one.instance_id for one in found if one.state is not InstanceState.FAILED)
        return found

    def notices(self) -> Sequence[Notice]:
        """None: what Azure tells from outside (the activity log) comes minutes after the 30 seconds
        that a machine has; the machine itself hears of its end by its metadata service."""
        return []

    def renew(self, instance_id: str, expires_at_us: int) -> None:
        """Move the expiry tag on; an unknown id, and a machine that ends, are success."""
        expiry_renewal.renew(
            self._clients, self._group, self._creation.find, instance_id, expires_at_us
        )

    def leftovers(self) -> Sequence[Leftover]:
        """Disks, cards and addresses of ours that hang on nothing, creates that failed, and
        availability sets without a machine."""
        return [*self._leftovers.look()]

    def discard(self, leftover_id: str) -> None:
        """Delete one; Azure itself refuses what hangs on a machine."""
        self._leftovers.discard(leftover_id)

    def remarks(self) -> Sequence[ProviderWarning]:
        """See Remarking.remarks."""
        return [*CODES.remarks(), *self._market.remarks()]

    def console(self, instance_id: str) -> str:
        """See Console.console: boot diagnostics, which Azure keeps in a blob of its own."""
        try:
            told = self._clients.compute(
                lambda c: c.virtual_machines.retrieve_boot_diagnostics_data(
                    self._group, instance_id
                ).as_dict()
            )
        except UnknownOutcome as error:
            if error.code in NOBODYS:
                return ""
            raise
        url = str(told.get("serialConsoleLogBlobUri") or "")
        return self._clients.blob(url) if url else ""

    def examine(self, needs: Sequence[CapacityNeed]) -> Sequence[Finding]:
        """See providers/readiness.py."""
        return ReadinessCheck(self._clients, self._settings, self._deployment).run(needs)

    def make_image(self, instance_id: str, name: str, tags: Mapping[str, str]) -> Image:
        """See ImageMaker."""
        return self._images.make(instance_id, name, tags)

    def images(self) -> Sequence[Image]:
        """See ImageMaker."""
        return self._images.all()

    def remove_image(self, image_id: str) -> None:
        """See ImageMaker."""
        self._images.remove(image_id)

    def interrupt(self, instance_id: str) -> Interruption:
        """See Interrupter: simulateEviction, which comes to something within half an hour."""
        row = self._creation.find(instance_id)
        spot = row is not None and read_instance(row).capacity_type is CapacityType.SPOT
        if row is None or not spot or not self._is_ours(row):
            raise not_to_be_taken(instance_id)
        self._clients.compute(
            lambda c: c.virtual_machines.simulate_eviction(self._group, instance_id)
        )
        return Interruption(f"simulateEviction of {instance_id}", EVICTED_S)

    def _make_set(self, request: LaunchRequest, tags: Mapping[str, str]) -> None:
        """The availability set of a gang: whichever rank asks first makes it, and the sweep asks
        the record by that one's token when no machine is in it any more."""
        try:
            self._clients.compute(lambda c: c.availability_sets.get(self._group, request.gang))
        except ProviderError as error:
            if error.code not in NOBODYS:
                raise
        else:
            return
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

    def _is_ours(self, row: Row) -> bool:
        return tags_of(row).get(DEPLOYMENT_TAG) == self._deployment


class SeenNames:
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
