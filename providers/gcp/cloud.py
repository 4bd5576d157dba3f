"""The adapter: the verbs of the port, spoken to Compute Engine."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from providers import cloud_init
from providers.base import (
    EXPIRES_TAG,
    CapacityType,
    Instance,
    Launched,
    LaunchRequest,
    Leftover,
    Notice,
    Offer,
    OfferRequest,
    Pending,
    PriceError,
    ProviderError,
    RejectedError,
)
from providers.fault_injection import Interruption, not_to_be_taken
from providers.gcp import fabric, leftovers
from providers.gcp.clients import Clients
from providers.gcp.codes import CHANGED, CODES, EXISTS, nobodys, operation_error
from providers.gcp.host_keys import HostKeys
from providers.gcp.images import Images
from providers.gcp.launch import ProjectSetup, instance
from providers.gcp.listing import alive, read_instance, same_machine
from providers.gcp.market import Market
from providers.gcp.names import (
    DEPLOYMENT_TAG,
    TOKEN_TAG,
    check_name,
    labelled,
    labels_of,
    name_of,
    parted,
)
from providers.gcp.operations import ATTEMPTS, done, request_id, unfinished_creates
from providers.gcp.preemptions import Preemptions
from providers.gcp.readiness import ReadinessCheck
from providers.gcp.settings import Settings
from providers.images import Image
from providers.readiness import CapacityNeed, Finding
from providers.warnings import ProviderWarning

DOCKER = "docker:"
LAUNCH_S = 9.0  # of the ten that the port gives
HEARD_S = 600.0  # ours, of an interruption that was asked for: Google promises nothing
CONSOLE_BYTES = 16 << 10  # of its end
POLL_S = 1.0  # between looks at an operation, at first a tenth of it


class GcpCloud:
    """Compute Engine in some regions of one project."""

    local = False
    watcher = "gcp"
    limits_life = True
    # A machine that is off costs no GPU, vCPU or memory any more, but its disk is billed until it
    # is deleted: about a thousandth of an 8xH100's price. Left on, it would cost all of it until
    # maxRunDuration is over. It is listed as one that ends, so that whoever looks deletes it.
    power_off = ("sudo", "-n", "shutdown", "-h", "now")
    prepared_file = cloud_init.STATE
    interruption_usd = 0.0  # a simulation has no price
    # Nothing is promised. An operation that is on its way is listed by itself (operations.py).
    visibility_s = 60.0

    def __init__(
        self, name: str, deployment: str, clients: Clients | None = None, **settings: Any
    ) -> None:
        """`settings` are those of `Settings`; `clients` those of another adapter with the same
        project, credentials and patience, whose connections stand."""
        given = Settings(**settings)
        self.name = name
        self._deployment = deployment
        self._patience_s = given.patience_s
        self._settings = given
        self._clients = clients or Clients(
            given.project, given.credentials_file, given.endpoints(), given.timeout_s
        )
        self._market = Market(
            self._clients,
            name,
            tuple(given.regions),
            given.instance_types,
            fabric=bool(given.fabric),
            reservations=given.reservations,
            flex_start=given.flex_start,
        )
        self._site = ProjectSetup(
            project=given.project,
            image=given.image,
            subnetwork=given.subnetwork,
            fabric=given.fabric,
            public=given.network == "public",
            account=given.node_service_account,
        )
        self._host_keys = HostKeys(self._clients)
        self._preemptions = Preemptions(self._clients)
        self._images = Images(self._clients, deployment)

    def offers(self, request: OfferRequest) -> Sequence[Offer]:
        """What fits and is on sale now, with the prices of this hour."""
        return [offer for offer in self._market.offers() if request.admits(offer)]

    def launch(self, request: LaunchRequest) -> Launched | Pending:
        """instances.insert in one zone. What came of it is known after some seconds, or told by
        `list`."""
        deadline_s = time.monotonic() + LAUNCH_S
        check_name(request.name)
        tags = {**request.tags, DEPLOYMENT_TAG: self._deployment, TOKEN_TAG: request.token}
        labels = labels_of(tags)
        self._check_price(request, labels)
        named = "" if request.image_id.startswith(DOCKER) else request.image_id
        site = replace(self._site, image=named or self._site.image)
        if fabric.policy_of(request):
            fabric.make_policy(self._clients, request, tags, deadline_s)
        body = instance(request, labels, site, cloud_init.user_data(request, host_key=False))
        for attempt in range(ATTEMPTS):
            operation = self._insert(request, body, attempt, deadline_s)
            if operation is None:
                return self._there(request, labels)
            failed_before = done(operation) and operation_error(operation) is not None
            if failed_before and attempt < ATTEMPTS - 1:
                continue  # the answer to a create of before, which made nothing
            break
        return self._settled(request, labels, operation, deadline_s)

    def terminate(self, instance_id: str) -> None:
        """End a machine and its disk; an unknown id is success."""
        zone, name = parted(instance_id)
        if zone:
            self._unless_nobodys("Instances", "delete_unary", zone=zone, instance=name)

    def list(self) -> Sequence[Instance]:
        """Every machine of ours in the project, and creates that made none. Two calls, however many
        there are, but for pages of 500, and one for each machine that has come up."""
        ours = labelled(self._deployment)
        # Before the machines: a create that is over meanwhile has made the one that is listed.
        creates = unfinished_creates(self._clients, self._deployment, time.time())
        answers = self._clients.aggregated("Instances", "instances", ours)
        rows = [row for _, found in answers for row in found]
        keys = self._host_keys.of(rows)
        listed = [read_instance(row, keys.get(row.id, "")) for row in rows]
        known = {machine.instance_id for machine in listed}
        missing = [one for one in creates if one.instance_id not in known]
        return [*listed, *(one.to_instance(self._deployment) for one in missing)]

    def notices(self) -> Sequence[Notice]:
        """Machines that Compute Engine has preempted since the last call."""
        return self._preemptions.read()

    def renew(self, instance_id: str, expires_at_us: int) -> None:
        """Move the expiry label on; an unknown id, and a machine that ends, are success."""
        try:
            self._move_expiry(instance_id, expires_at_us)
        except ProviderError as error:
            if error.code not in CHANGED:
                raise
            self._move_expiry(instance_id, expires_at_us)  # somebody was faster: by what is now

    def leftovers(self) -> Sequence[Leftover]:
        """Disks and placement policies of ours that no machine uses."""
        return leftovers.find(self._clients, self._deployment)

    def discard(self, leftover_id: str) -> None:
        """Delete one; Compute Engine itself refuses what a machine uses."""
        leftovers.discard(self._clients, leftover_id)

    def remarks(self) -> Sequence[ProviderWarning]:
        """See Remarking.remarks."""
        return [*CODES.remarks(), *self._market.scores.remarks()]

    def console(self, instance_id: str) -> str:
        """See Console.console; port 1 is where the image's kernel and cloud-init write."""
        zone, name = parted(instance_id)
        if not zone:
            return ""
        answer = self._unless_nobodys(
            "Instances", "get_serial_port_output", zone=zone, instance=name, start=-CONSOLE_BYTES
        )
        return str(answer.contents) if answer is not None else ""

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
        """See Interrupter: simulateMaintenanceEvent, which a Spot machine ends of."""
        row, (zone, name) = self._find(instance_id), parted(instance_id)
        ours = row is not None and row.labels.get(DEPLOYMENT_TAG) == self._deployment
        if not ours or read_instance(row).capacity_type is not CapacityType.SPOT:
            raise not_to_be_taken(instance_id)
        operation = self._clients.call(
            "Instances", "simulate_maintenance_event_unary", zone=zone, instance=name
        )
        error = operation_error(operation) if done(operation) else None
        if error is not None:
            raise error
        return Interruption(f"simulateMaintenanceEvent: operation {operation.name}", HEARD_S)

    def _insert(
        self, request: LaunchRequest, body: Mapping[str, Any], attempt: int, deadline_s: float
    ) -> Any:
        """The operation; None where a machine has the name already."""
        ident = request_id(self._deployment, request.token, attempt)
        try:
            left_s = deadline_s - time.monotonic()
            return self._clients.insert(request.zone, body, ident, left_s)
        except ProviderError as error:
            if error.code in EXISTS:
                return None
            raise

    def _settled(
        self, request: LaunchRequest, labels: Mapping[str, str], operation: Any, deadline_s: float
    ) -> Launched | Pending:
        """What an operation comes to within our patience."""
        pause_s, name = POLL_S / 10, operation.name
        until_s = min(time.monotonic() + self._patience_s, deadline_s)
        while not done(operation):
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return Pending(name_of(request.zone, name))
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, POLL_S)
            try:
                operation = self._clients.call(
                    "ZoneOperations",
                    "get",
                    timeout_s=deadline_s - time.monotonic(),
                    zone=request.zone,
                    operation=name,
                )
            except ProviderError:  # the create was accepted, whatever is wrong with looking
                return Pending(name_of(request.zone, name))
        error = operation_error(operation)
        if error is not None and error.code not in EXISTS:
            raise error
        return self._there(request, labels)

    def _there(self, request: LaunchRequest, labels: Mapping[str, str]) -> Launched:
        """The machine of that name, which the operation or another one made. Raises RejectedError
        for one that is not what is asked for; one that has ended is as good as asked for."""
        row = self._find(name_of(request.zone, request.name))
        if row is not None and not same_machine(row, labels, request.instance_type, EXPIRES_TAG):
            raise RejectedError(
                f"{request.zone} has a machine {request.name} already, with other labels or of "
                "another type"
            )
        return Launched(name_of(request.zone, request.name))

    def _check_price(self, request: LaunchRequest, labels: Mapping[str, str]) -> None:
        """Google Cloud takes no bids: the cap is ours to keep. It does not take back a machine that
        this request has made."""
        most = request.max_price_microusd_per_h
        if not most or request.capacity_type is not CapacityType.SPOT:
            return
        price = self._market.spot_price(request.region, request.instance_type)
        if 0 < price <= most:
            return
        row = self._find(name_of(request.zone, request.name))
        if row is None or not same_machine(row, labels, request.instance_type, EXPIRES_TAG):
            known = f"{price / 1e6:.4f} USD" if price else "unknown"
            raise PriceError(
                f"the spot price of {request.instance_type} in {request.region} is {known} an "
                f"hour; {most / 1e6:.4f} USD are allowed"
            )

    def _move_expiry(self, instance_id: str, expires_at_us: int) -> None:
        row = self._find(instance_id)
        if row is None or not alive(row) or read_instance(row).expires_at_us >= expires_at_us:
            return
        zone, name = parted(instance_id)
        labels = {**row.labels, EXPIRES_TAG: str(expires_at_us // 1_000_000)}
        self._unless_nobodys(
            "Instances",
            "set_labels_unary",
            zone=zone,
            instance=name,
            instances_set_labels_request_resource={
                "labels": labels,
                "label_fingerprint": row.label_fingerprint,
            },
        )

    def _find(self, instance_id: str) -> Any:
        """The machine as the API has it; None for nobody's."""
        zone, name = parted(instance_id)
        if not zone:
            return None
        return self._unless_nobodys("Instances", "get", zone=zone, instance=name)

    def _unless_nobodys(self, collection: str, method: str, **fields: Any) -> Any:
        try:
            return self._clients.call(collection, method, **fields)
        except ProviderError as error:
            if nobodys(error):
                return None
            raise
