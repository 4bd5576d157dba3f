"""The adapter: the verbs of the port, spoken to Compute Engine."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from providers import cloudinit
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
from providers.gcp import leftovers
from providers.gcp.clients import Clients
from providers.gcp.codes import CHANGED, EXISTS, nobodys, operation_error
from providers.gcp.hostkeys import HostKeys
from providers.gcp.launch import Site, instance
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

DOCKER = "docker:"
IMAGE = (
    "projects/ubuntu-os-accelerator-images/global/images/family/"
    "ubuntu-accelerator-2404-amd64-with-nvidia-580"
)
# Machine types with GPUs of their own; others are named in the configuration.
PATTERNS = ("a2*", "a3*", "a4*", "g2*")
LAUNCH_S = 9.0  # of the ten that the port gives
POLL_S = 1.0  # between looks at an operation, at first a tenth of it


@dataclass(frozen=True)
class Settings:
    """[providers.NAME] of the configuration. `image` is a link without its host; `network` is
    "public", or "private" and "jump", where machines have no address of the internet; `subnetwork`
    is its name in each region; `patience_s` is how long a launch waits for its operation."""

    project: str
    regions: Sequence[str]
    credentials_file: Path | None = None
    instance_types: Sequence[str] = PATTERNS
    image: str = IMAGE
    network: str = "public"
    subnetwork: str = "spotd"
    node_service_account: str = ""
    compute_endpoint: str = ""
    billing_endpoint: str = ""
    timeout_s: float = 10.0
    patience_s: float = 5.0


class GcpCloud:
    """Compute Engine in some regions of one project."""

    local = False
    watcher = "gcp"
    limits_life = True
    # A machine that is off costs no GPU, vCPU or memory any more, but its disk is billed until it
    # is deleted: about a thousandth of an 8xH100's price. Left on, it would cost all of it until
    # maxRunDuration is over. It is listed as one that ends, so that whoever looks deletes it.
    power_off = ("sudo", "-n", "shutdown", "-h", "now")
    prepared_file = cloudinit.STATE
    # Nothing is promised. An operation that is on its way is listed by itself (operations.py).
    visibility_s = 60.0

    def __init__(self, name: str, deployment: str, **settings: Any) -> None:
        """`settings` are those of `Settings`."""
        given = Settings(**settings)
        self.name = name
        self._deployment = deployment
        self._patience_s = given.patience_s
        endpoints = {"compute": given.compute_endpoint, "billing": given.billing_endpoint}
        self._clients = Clients(given.project, given.credentials_file, endpoints, given.timeout_s)
        self._market = Market(self._clients, name, tuple(given.regions), given.instance_types)
        self._site = Site(
            project=given.project,
            image=given.image,
            subnetwork=given.subnetwork,
            public=given.network == "public",
            account=given.node_service_account,
        )
        self._host_keys = HostKeys(self._clients)
        self._preemptions = Preemptions(self._clients)

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
        body = instance(request, labels, site, cloudinit.user_data(request, host_key=False))
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
        """Disks of ours that no machine uses."""
        return leftovers.find(self._clients, self._deployment)

    def discard(self, leftover_id: str) -> None:
        """Delete one; Compute Engine itself refuses what a machine uses."""
        leftovers.discard(self._clients, leftover_id)

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
