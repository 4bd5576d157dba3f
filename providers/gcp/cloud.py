"""The Google Cloud adapter: the provider port on Compute Engine."""

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
from providers.dollars import format_microusd
from providers.fault_injection import Interruption, not_interruptible
from providers.gcp import fabric, leftovers
from providers.gcp.clients import Clients
from providers.gcp.codes import CODES, EXISTS, MODIFIED, is_not_found, operation_error
from providers.gcp.host_keys import HostKeys
from providers.gcp.images import Images
from providers.gcp.launch import ProjectSetup, instance_body
from providers.gcp.listing import is_alive, read_instance, same_machine
from providers.gcp.market import Market
from providers.gcp.names import (
    DEPLOYMENT_TAG,
    TOKEN_TAG,
    check_name,
    label_filter,
    labels_of,
    qualified_name,
    split_name,
)
from providers.gcp.operations import ATTEMPTS, is_done, request_id, unfinished_creates
from providers.gcp.preemptions import Preemptions
from providers.gcp.readiness import ReadinessCheck
from providers.gcp.settings import Settings
from providers.images import HasImages
from providers.readiness import CapacityNeed, Finding
from providers.warnings import ProviderWarning

DOCKER = "docker:"
LAUNCH_TIMEOUT_S = 9.0  # the port allows ten seconds
NOTICE_WITHIN_S = 600.0  # our estimate: Google guarantees nothing
CONSOLE_BYTES = 16 << 10  # read from the end
POLL_S = 1.0  # between polls of an operation; the first pause is a tenth of it


class GcpCloud(HasImages):
    """Compute Engine in the configured regions of one project."""

    local = False
    watcher = "gcp"
    limits_life = True
    # A stopped machine costs no GPU, vCPU or memory, but its disk is billed until it is deleted:
    # about a thousandth of an 8xH100's price. Left on, it would cost the full price until
    # maxRunDuration is over. It is listed as STOPPING, so that it gets deleted.
    power_off = cloud_init.POWER_OFF
    prepared_file = cloud_init.STATE_FILE
    interruption_usd = 0.0  # a simulation has no price
    # No guarantee by Google. Creates in progress are listed from their operations (operations.py).
    visibility_s = 60.0

    def __init__(
        self, name: str, deployment: str, clients: Clients | None = None, **settings: Any
    ) -> None:
        """`settings` are the fields of `Settings`. `clients` may be those of another adapter with
        the same project, credentials and timeout, to reuse its connections."""
        parsed = Settings(**settings)
        self.name = name
        self._deployment = deployment
        self._patience_s = parsed.patience_s
        self._settings = parsed
        self._clients = clients or Clients(
            parsed.project, parsed.credentials_file, parsed.endpoints(), parsed.timeout_s
        )
        self._market = Market(
            self._clients,
            name,
            tuple(parsed.regions),
            parsed.instance_types,
            fabric=bool(parsed.fabric),
            reservations=parsed.reservations,
            flex_start=parsed.flex_start,
        )
        self._project_setup = ProjectSetup(
            project=parsed.project,
            image=parsed.image,
            subnetwork=parsed.subnetwork,
            fabric=parsed.fabric,
            public=parsed.network == "public",
            account=parsed.node_service_account,
        )
        self._host_keys = HostKeys(self._clients)
        self._preemptions = Preemptions(self._clients)
        self._images = Images(self._clients, deployment)

    def offers(self, request: OfferRequest) -> Sequence[Offer]:
        """Return matching offers with the prices of this hour."""
        return [offer for offer in self._market.offers() if request.admits(offer)]

    def launch(self, request: LaunchRequest) -> Launched | Pending:
        """Call instances.insert in one zone. The outcome is known after some seconds, or from
        `list`."""
        deadline_s = time.monotonic() + LAUNCH_TIMEOUT_S
        check_name(request.name)
        tags = {**request.tags, DEPLOYMENT_TAG: self._deployment, TOKEN_TAG: request.token}
        labels = labels_of(tags)
        self._check_price(request, labels)
        image = "" if request.image_id.startswith(DOCKER) else request.image_id
        project_setup = replace(self._project_setup, image=image or self._project_setup.image)
        if fabric.policy_of(request):
            fabric.make_policy(self._clients, request, tags, deadline_s)
        body = instance_body(
            request, labels, project_setup, cloud_init.user_data(request, host_key=False)
        )
        for attempt in range(ATTEMPTS):
            operation = self._insert(request, body, attempt, deadline_s)
            if operation is None:
                return self._existing(request, labels)
            failed_before = is_done(operation) and operation_error(operation) is not None
            if failed_before and attempt < ATTEMPTS - 1:
                continue  # the recorded outcome of an earlier create that failed
            break
        return self._wait_for_create(request, labels, operation, deadline_s)

    def terminate(self, instance_id: str) -> None:
        """Delete a machine and its disk; an unknown id is success."""
        zone, name = split_name(instance_id)
        if zone:
            self._call_unless_missing("Instances", "delete_unary", zone=zone, instance=name)

    def list(self) -> Sequence[Instance]:
        """Return every machine of the deployment, and its creates that made none.

        Takes two calls plus pages of 500, and one call for each newly booted machine.
        """
        own_filter = label_filter(self._deployment)
        # Read before the machines: a create that finishes in between is listed as its machine.
        creates = unfinished_creates(self._clients, self._deployment, time.time())
        rows_by_zone = self._clients.aggregated("Instances", "instances", own_filter)
        rows = [row for _, zone_rows in rows_by_zone for row in zone_rows]
        keys = self._host_keys.of(rows)
        listed = [read_instance(row, keys.get(row.id, "")) for row in rows]
        known = {machine.instance_id for machine in listed}
        missing = [create for create in creates if create.instance_id not in known]
        return [*listed, *(create.to_instance(self._deployment) for create in missing)]

    def notices(self) -> Sequence[Notice]:
        """Return machines that Compute Engine has preempted since the last call."""
        return self._preemptions.read()

    def renew(self, instance_id: str, expires_at_us: int) -> None:
        """Extend the expiry label; an unknown id and a terminating machine are success."""
        try:
            self._extend_expiry(instance_id, expires_at_us)
        except ProviderError as error:
            if error.code not in MODIFIED:
                raise
            self._extend_expiry(
                instance_id, expires_at_us
            )  # changed concurrently: retry with the new state

    def leftovers(self) -> Sequence[Leftover]:
        """Return disks and placement policies of the deployment that no machine uses."""
        return leftovers.find(self._clients, self._deployment)

    def discard(self, leftover_id: str) -> None:
        """Delete a leftover; Compute Engine itself refuses one that a machine uses."""
        leftovers.discard(self._clients, leftover_id)

    def warnings(self) -> Sequence[ProviderWarning]:
        """See WarningSource.warnings."""
        return [*CODES.warnings(), *self._market.scores.warnings()]

    def read_serial_console(self, instance_id: str) -> str:
        """See SerialConsole; the kernel and cloud-init of the image write to port 1."""
        zone, name = split_name(instance_id)
        if not zone:
            return ""
        answer = self._call_unless_missing(
            "Instances", "get_serial_port_output", zone=zone, instance=name, start=-CONSOLE_BYTES
        )
        return str(answer.contents) if answer is not None else ""

    def check_readiness(self, needs: Sequence[CapacityNeed]) -> Sequence[Finding]:
        """See ReadinessChecker."""
        return ReadinessCheck(self._clients, self._settings, self._deployment).run(needs)

    def interrupt(self, instance_id: str) -> Interruption:
        """See FaultInjector: by simulateMaintenanceEvent, which terminates a Spot machine."""
        row, (zone, name) = self._find(instance_id), split_name(instance_id)
        is_own = row is not None and row.labels.get(DEPLOYMENT_TAG) == self._deployment
        if not is_own or read_instance(row).capacity_type is not CapacityType.SPOT:
            raise not_interruptible(instance_id)
        operation = self._clients.call(
            "Instances", "simulate_maintenance_event_unary", zone=zone, instance=name
        )
        error = operation_error(operation) if is_done(operation) else None
        if error is not None:
            raise error
        return Interruption(
            f"simulateMaintenanceEvent: operation {operation.name}", NOTICE_WITHIN_S
        )

    def _insert(
        self, request: LaunchRequest, body: Mapping[str, Any], attempt: int, deadline_s: float
    ) -> Any:
        """Return the operation; None when a machine already has the name."""
        request_id_ = request_id(self._deployment, request.token, attempt)
        try:
            remaining_s = deadline_s - time.monotonic()
            return self._clients.insert(request.zone, body, request_id_, remaining_s)
        except ProviderError as error:
            if error.code in EXISTS:
                return None
            raise

    def _wait_for_create(
        self, request: LaunchRequest, labels: Mapping[str, str], operation: Any, deadline_s: float
    ) -> Launched | Pending:
        """Wait for an operation, at most for the configured patience."""
        pause_s, name = POLL_S / 10, operation.name
        stop_s = min(time.monotonic() + self._patience_s, deadline_s)
        while not is_done(operation):
            remaining_s = stop_s - time.monotonic()
            if remaining_s <= 0:
                return Pending(qualified_name(request.zone, name))
            time.sleep(min(pause_s, remaining_s))
            pause_s = min(2 * pause_s, POLL_S)
            try:
                operation = self._clients.call(
                    "ZoneOperations",
                    "get",
                    timeout_s=deadline_s - time.monotonic(),
                    zone=request.zone,
                    operation=name,
                )
            except ProviderError:  # the create was accepted; only polling failed
                return Pending(qualified_name(request.zone, name))
        error = operation_error(operation)
        if error is not None and error.code not in EXISTS:
            raise error
        return self._existing(request, labels)

    def _existing(self, request: LaunchRequest, labels: Mapping[str, str]) -> Launched:
        """Return the machine of that name, which this operation or another one created.

        Raises RejectedError when it does not match the request. A machine that has ended is a
        match.
        """
        row = self._find(qualified_name(request.zone, request.name))
        if row is not None and not same_machine(row, labels, request.instance_type, EXPIRES_TAG):
            raise RejectedError(
                f"{request.zone} has a machine {request.name} already, with other labels or of "
                "another type"
            )
        return Launched(qualified_name(request.zone, request.name))

    def _check_price(self, request: LaunchRequest, labels: Mapping[str, str]) -> None:
        """Enforce the maximum price: Google Cloud takes no bids. A machine that this request
        already created is retained."""
        max_microusd = request.max_price_microusd_per_h
        if not max_microusd or request.capacity_type is not CapacityType.SPOT:
            return
        price = self._market.spot_price(request.region, request.instance_type)
        if 0 < price <= max_microusd:
            return
        row = self._find(qualified_name(request.zone, request.name))
        if row is None or not same_machine(row, labels, request.instance_type, EXPIRES_TAG):
            price_text = format_microusd(price) if price else "unknown"
            raise PriceError(
                f"the spot price of {request.instance_type} in {request.region} is {price_text} an "
                f"hour; {format_microusd(max_microusd)} are allowed"
            )

    def _extend_expiry(self, instance_id: str, expires_at_us: int) -> None:
        row = self._find(instance_id)
        if row is None or not is_alive(row) or read_instance(row).expires_at_us >= expires_at_us:
            return
        zone, name = split_name(instance_id)
        labels = {**row.labels, EXPIRES_TAG: str(expires_at_us // 1_000_000)}
        self._call_unless_missing(
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
        """Return the machine as the API describes it; None for a missing one."""
        zone, name = split_name(instance_id)
        if not zone:
            return None
        return self._call_unless_missing("Instances", "get", zone=zone, instance=name)

    def _call_unless_missing(self, collection: str, method: str, **fields: Any) -> Any:
        try:
            return self._clients.call(collection, method, **fields)
        except ProviderError as error:
            if is_not_found(error):
                return None
            raise
