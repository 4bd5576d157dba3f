"""The Azure adapter: the provider port on Azure Resource Manager."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from providers import cloud_init
from providers.azure import expiry_renewal
from providers.azure.addresses import Addresses
from providers.azure.clients import Clients
from providers.azure.codes import CODES, NOT_FOUND
from providers.azure.create_machine import GONE, MachineCreator
from providers.azure.images import Images
from providers.azure.launch import (
    RegionSetup,
    availability_set_body,
    machine_body,
    machine_name,
    needs_availability_set,
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
from providers.fault_injection import Interruption, not_interruptible
from providers.images import HasImages
from providers.readiness import CapacityNeed, Finding
from providers.warnings import ProviderWarning

DOCKER = "docker:"
NOTICE_WITHIN_S = 2100.0  # Azure evicts within 30 minutes of the request, plus a margin
MAX_NAMES = 10_000  # of machines that this process has launched or listed

Row = Mapping[str, Any]
MachineRows = list[tuple[Row, Row | None]]  # with their instance views, where known


class AzureCloud(HasImages):
    """Machines in the configured regions, in a resource group of the deployment's own."""

    local = False
    watcher = "azure"
    limits_life = False
    # A machine that powers itself off stays allocated, and is billed until it is deleted.
    power_off: tuple[str, ...] = ()
    prepared_file = cloud_init.STATE_FILE
    interruption_usd = 0.0  # a simulation has no price
    # Azure guarantees nothing; its lists come from caches, mostly seconds old.
    visibility_s = 60.0

    def __init__(
        self, name: str, deployment: str, clients: Clients | None = None, **settings: Any
    ) -> None:
        """`settings` are the fields of `Settings`. `clients` may be those of another adapter with
        the same subscription, endpoints and timeout, to reuse its connections."""
        parsed = self._settings = Settings(**settings)
        self.name = name
        self._deployment = deployment
        self._group = parsed.resource_group
        public = parsed.network == "public"
        self._clients = clients or Clients(
            parsed.subscription_id,
            parsed.endpoint,
            parsed.authority,
            parsed.prices_endpoint,
            parsed.timeout_s,
        )
        self._region_setup = RegionSetup(
            parsed.subscription_id, self._group, parsed.image, public, parsed.node_identity
        )
        self._market = Market(
            self._clients,
            name,
            tuple(parsed.regions),
            parsed.instance_types,
            reservations=parsed.reservations,
        )
        self._creator = MachineCreator(self._clients, self._group, parsed.pace)
        self._leftovers = Leftovers(
            self._clients,
            self._group,
            deployment,
            self._list_machines,
            self._creator.find,
            self._creator.delete,
        )
        self._images = Images(
            self._clients, parsed.subscription_id, self._group, deployment, self._creator.find
        )
        self._addresses = Addresses(self._clients, self._group, public=public)
        self._launched = LaunchedNames()

    def offers(self, request: OfferRequest) -> Sequence[Offer]:
        """Return matching offers with retail prices no older than an hour."""
        return [offer for offer in self._market.offers() if request.admits(offer)]

    def launch(self, request: LaunchRequest) -> Launched | Pending:
        """Create the machine by one PUT, which changes nothing that exists.

        A machine that this process has already seen is never created again: Azure forgets a name as
        soon as its machine is gone.
        """
        name = machine_name(request.token)
        tags = {**request.tags, DEPLOYMENT_TAG: self._deployment, TOKEN_TAG: request.token}
        image = "" if request.image_id.startswith(DOCKER) else request.image_id
        body = machine_body(request, tags, self._region_setup, cloud_init.user_data(request), image)
        if name in self._launched:
            return self._existing(name, body)
        if needs_availability_set(request):
            self._make_availability_set(request, tags)
        outcome = self._creator.create(name, body)
        if isinstance(outcome, Launched):
            self._launched.add([name])
        return outcome

    def terminate(self, instance_id: str) -> None:
        """Delete a machine with its interface, address and disk; an unknown id and a machine that
        is being deleted are success."""
        self._creator.delete(instance_id)

    def list(self) -> Sequence[Instance]:
        """Return every machine of the deployment, failed creates included.

        Takes three calls (machines, run-time status, addresses), however many machines there are.
        """
        machines = self._list_machines()
        rows = [(row, view) for row, view in machines if self._is_own(row)]
        addresses = self._addresses.of([row for row, _ in rows])
        instances = [
            read_instance(row, view, *hosts)
            for (row, view), hosts in zip(rows, addresses, strict=True)
        ]
        self._launched.add(
            instance.instance_id
            for instance in instances
            if instance.state is not InstanceState.FAILED
        )
        return instances

    def notices(self) -> Sequence[Notice]:
        """Return nothing: Azure's activity log is minutes late, and a machine has only 30 seconds.
        The machine itself reads its notice from the metadata service."""
        return []

    def renew(self, instance_id: str, expires_at_us: int) -> None:
        """Extend the expiry tag; an unknown id and a terminating machine are success."""
        expiry_renewal.renew(
            self._clients, self._group, self._creator.find, instance_id, expires_at_us
        )

    def leftovers(self) -> Sequence[Leftover]:
        """Return unattached disks, interfaces and addresses, failed creates, and availability sets
        without a machine."""
        return [*self._leftovers.list_all()]

    def discard(self, leftover_id: str) -> None:
        """Delete a leftover; Azure itself refuses one that is attached to a machine."""
        self._leftovers.discard(leftover_id)

    def warnings(self) -> Sequence[ProviderWarning]:
        """See WarningSource.warnings."""
        return [*CODES.warnings(), *self._market.warnings()]

    def read_serial_console(self, instance_id: str) -> str:
        """See SerialConsole; from boot diagnostics, which Azure stores in a blob."""
        try:
            diagnostics = self._clients.compute(
                lambda client: client.virtual_machines.retrieve_boot_diagnostics_data(
                    self._group, instance_id
                ).as_dict()
            )
        except UnknownOutcome as error:
            if error.code in NOT_FOUND:
                return ""
            raise
        url = str(diagnostics.get("serialConsoleLogBlobUri") or "")
        return self._clients.blob(url) if url else ""

    def check_readiness(self, needs: Sequence[CapacityNeed]) -> Sequence[Finding]:
        """See ReadinessChecker."""
        return ReadinessCheck(self._clients, self._settings, self._deployment).run(needs)

    def interrupt(self, instance_id: str) -> Interruption:
        """See FaultInjector: by simulateEviction, which takes effect within half an hour."""
        row = self._creator.find(instance_id)
        is_spot = row is not None and read_instance(row).capacity_type is CapacityType.SPOT
        if row is None or not is_spot or not self._is_own(row):
            raise not_interruptible(instance_id)
        self._clients.compute(
            lambda client: client.virtual_machines.simulate_eviction(self._group, instance_id)
        )
        return Interruption(f"simulateEviction of {instance_id}", NOTICE_WITHIN_S)

    def _make_availability_set(self, request: LaunchRequest, tags: Mapping[str, str]) -> None:
        """Create the availability set of a gang unless it exists.

        It has the tags of the rank that created it, so the sweep can look up that rank's token when
        the set is empty.
        """
        try:
            self._clients.compute(
                lambda client: client.availability_sets.get(self._group, request.gang)
            )
        except ProviderError as error:
            if error.code not in NOT_FOUND:
                raise
        else:
            return
        body = availability_set_body(request, tags)
        self._clients.compute(
            lambda client: client.availability_sets.create_or_update(
                self._group, request.gang, body
            )
        )

    def _existing(self, name: str, body: dict[str, Any]) -> Launched | Pending:
        try:
            return self._creator.check_existing(name, body)
        except UnknownOutcome as error:
            if error.code == GONE:
                return Launched(name)  # it existed; the listing reports its end
            raise

    def _list_machines(self) -> MachineRows:
        """Return every machine of the group with its instance view. Azure lists the views of
        machines outside scale sets only for a whole subscription."""
        rows = self._clients.compute(
            lambda client: [
                machine.as_dict() for machine in client.virtual_machines.list(self._group)
            ]
        )
        if not rows:
            return []
        statuses = self._clients.compute(
            lambda client: [
                machine.as_dict()
                for machine in client.virtual_machines.list_all(status_only="true")
            ]
        )
        views = views_of(statuses)
        return [(row, views.get(key_of(row))) for row in rows]

    def _is_own(self, row: Row) -> bool:
        return tags_of(row).get(DEPLOYMENT_TAG) == self._deployment


class LaunchedNames:
    """The latest names of machines that this process knows to have existed."""

    def __init__(self, max_names: int = MAX_NAMES) -> None:
        self._max_names = max_names
        self._lock = threading.Lock()
        self._names: dict[str, None] = {}

    def add(self, names: Iterable[str]) -> None:
        with self._lock:
            for name in names:
                self._names.pop(name, None)
                self._names[name] = None
            for name in list(self._names)[: max(0, len(self._names) - self._max_names)]:
                del self._names[name]

    def __contains__(self, name: str) -> bool:
        return name in self._names
