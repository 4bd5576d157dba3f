"""The AWS adapter: the provider port on EC2."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from providers import cloud_init
from providers.aws import fault_injection, groups, leftovers
from providers.aws.clients import Clients
from providers.aws.codes import CODES, NO_LIVE_CONSOLE, NOT_FOUND, PARAMETER_MISMATCH
from providers.aws.images import Images
from providers.aws.interruption_warnings import InterruptionWarnings
from providers.aws.launch import Fabric, run_instances
from providers.aws.listing import (
    DEPLOYMENT_TAG,
    instances_of,
    qualified_name,
    read_instance,
    split_name,
    tag_filter,
    tags_of,
)
from providers.aws.market import Market
from providers.aws.network import ZoneSetups
from providers.aws.readiness import ReadinessCheck
from providers.aws.settings import Settings
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
    ProviderError,
    RejectedError,
    UnknownOutcome,
)
from providers.fault_injection import Interruption, not_interruptible
from providers.images import HasImages
from providers.readiness import CapacityNeed, Finding
from providers.warnings import ProviderWarning

DOCKER = "docker:"
_ENDED = ("shutting-down", "terminated")


class AwsCloud(HasImages):
    """EC2 in the configured regions of one account."""

    local = False
    watcher = "aws"
    limits_life = False
    # InstanceInitiatedShutdownBehavior is "terminate": a machine that powers off is gone.
    power_off = cloud_init.POWER_OFF
    prepared_file = cloud_init.STATE_FILE
    # EC2 guarantees nothing; its answers are eventually consistent, mostly within seconds.
    visibility_s = 60.0
    interruption_usd = fault_injection.MAX_FEE_USD

    def __init__(
        self, name: str, deployment: str, clients: Clients | None = None, **settings: Any
    ) -> None:
        """`settings` are the fields of `Settings`. `clients` may be those of another adapter with
        the same profile and timeout, to reuse its connections."""
        parsed = self._settings = Settings(**settings)
        self.name = name
        self._deployment = deployment
        self._regions = tuple(parsed.regions)
        self._clients = clients or Clients(parsed.profile, parsed.timeout_s)
        self._market = Market(
            self._clients,
            name,
            self._regions,
            parsed.instance_types,
            multi_card=parsed.network != "public",
            reservations=parsed.reservations,
        )
        self._zone_setups = ZoneSetups(
            self._clients, parsed.image, parsed.network, parsed.node_role
        )
        self._images = Images(self._clients, self._regions, deployment)
        self._warnings = {
            region: InterruptionWarnings(self._clients, region, deployment, parsed.queue)
            for region in self._regions
        }

    def offers(self, request: OfferRequest) -> Sequence[Offer]:
        """Return matching offers with current spot prices, from the regions that answer."""
        return [offer for offer in self._market.offers() if request.admits(offer)]

    def launch(self, request: LaunchRequest) -> Launched | Pending:
        """Call RunInstances in one zone. The outcome is known at once, or not at all."""
        region = request.region
        tags = {**request.tags, DEPLOYMENT_TAG: self._deployment}
        if groups.group_name(request):
            groups.create_group(self._clients, request, tags)
        try:
            answer = self._clients.call(
                region, "run_instances", **self._launch_parameters(request, tags)
            )
        except RejectedError as error:
            if error.code != PARAMETER_MISMATCH:
                raise
            return self._find_launched(request, tags, error)
        return _launched(region, answer)

    def terminate(self, instance_id: str) -> None:
        """Terminate a machine; an unknown id is success."""
        region, instance = split_name(instance_id)
        if region:
            self._call_unless_missing(region, "terminate_instances", InstanceIds=[instance])

    def list(self) -> Sequence[Instance]:
        """Return every machine of the deployment in all regions, including terminated ones that EC2
        still lists."""
        own_filter = [tag_filter(self._deployment)]
        results = self._clients.for_all_regions(
            self._regions,
            lambda region: instances_of(
                self._clients.pages(
                    region, "describe_instances", "Reservations", Filters=own_filter
                )
            ),
        )
        return [read_instance(region, row) for region, rows in results for row in rows]

    def notices(self) -> Sequence[Notice]:
        """Return interruptions from marked spot requests and from the EventBridge queue.

        The error of one region does not hide the warnings of another; it is raised only without
        warnings.
        """
        answers = self._clients.for_all_regions(
            self._regions, lambda region: [self._warnings[region].read()]
        )
        results = [answer for _, [answer] in answers]
        notices = [notice for batch, _ in results for notice in batch]
        for _, failed in results:
            if failed is not None and not notices:
                raise failed
        return notices

    def renew(self, instance_id: str, expires_at_us: int) -> None:
        """Extend the expiry tag; an unknown id and a terminating machine are success."""
        region, instance = split_name(instance_id)
        if not region:
            return
        answer = self._call_unless_missing(region, "describe_instances", InstanceIds=[instance])
        for row in instances_of(answer.get("Reservations") or ()):
            current = read_instance(region, row)
            if row["State"]["Name"] in _ENDED or current.expires_at_us >= expires_at_us:
                continue
            tag = {"Key": EXPIRES_TAG, "Value": str(expires_at_us // 1_000_000)}
            self._call_unless_missing(region, "create_tags", Resources=[instance], Tags=[tag])

    def leftovers(self) -> Sequence[Leftover]:
        """Return unattached volumes, interfaces and addresses, and placement groups without a
        machine."""
        results = self._clients.for_all_regions(
            self._regions, lambda region: leftovers.find(self._clients, region, self._deployment)
        )
        return [leftover for _, rows in results for leftover in rows]

    def discard(self, leftover_id: str) -> None:
        """Delete a leftover; EC2 itself refuses one that is attached to a machine."""
        region, resource = split_name(leftover_id)
        if region:
            leftovers.discard(self._clients, region, resource)

    def warnings(self) -> Sequence[ProviderWarning]:
        """See WarningSource.warnings."""
        return [*CODES.warnings(), *self._market.warnings()]

    def read_serial_console(self, instance_id: str) -> str:
        """See SerialConsole. Types without live output return what EC2 stored last."""
        region, instance = split_name(instance_id)
        if not region:
            return ""
        try:
            answer = self._call_unless_missing(
                region, "get_console_output", InstanceId=instance, Latest=True
            )
        except RejectedError as error:
            if error.code != NO_LIVE_CONSOLE:
                raise
            answer = self._call_unless_missing(region, "get_console_output", InstanceId=instance)
        return str(answer.get("Output") or "")  # the SDK has read its base64

    def check_readiness(self, needs: Sequence[CapacityNeed]) -> Sequence[Finding]:
        """See ReadinessChecker. Uses no cached facts."""
        uncached = AwsCloud(self.name, self._deployment, self._clients, **vars(self._settings))
        return ReadinessCheck(
            uncached._clients, self._settings, self._deployment, uncached._launch_parameters
        ).run(needs)

    def _launch_parameters(self, request: LaunchRequest, tags: Mapping[str, str]) -> dict[str, Any]:
        """Return the parameters of RunInstances. Raises ProviderError."""
        image = "" if request.image_id.startswith(DOCKER) else request.image_id
        zone_setup = self._zone_setups.for_zone(request.region, request.zone, image)
        fabric = Fabric()
        if request.interconnect:
            machine = self._market.machine_type(request.region, request.instance_type)
            fabric = Fabric(machine.efa_cards if machine else 0)
        group, user_data = groups.group_name(request), cloud_init.user_data(request)
        return run_instances(request, tags, zone_setup, user_data, fabric, group)

    def interrupt(self, instance_id: str) -> Interruption:
        """See FaultInjector: by an FIS experiment."""
        region, instance = split_name(instance_id)
        answer = (
            self._call_unless_missing(region, "describe_instances", InstanceIds=[instance])
            if region
            else {}
        )
        for row in instances_of(answer.get("Reservations") or ()):
            is_own = tags_of(row).get(DEPLOYMENT_TAG) == self._deployment
            if is_own and read_instance(region, row).capacity_type is CapacityType.SPOT:
                return fault_injection.interrupt(self._clients, self._deployment, region, instance)
        raise not_interruptible(instance_id)

    def _find_launched(
        self, request: LaunchRequest, tags: dict[str, str], error: RejectedError
    ) -> Launched:
        """Return the machine that an earlier request with this token launched.

        The same request may have given other parameters then (a newer image behind the same SSM
        parameter); a machine with the requested tags is accepted. Raises the vendor's rejection for
        any other.
        """
        region = request.region
        token = [{"Name": "client-token", "Values": [request.token]}]
        rows = self._clients.pages(region, "describe_instances", "Reservations", Filters=token)
        for row in instances_of(rows):
            actual = tags_of(row) | {EXPIRES_TAG: tags.get(EXPIRES_TAG, "")}
            if {k: v for k, v in actual.items() if v} == tags:
                return Launched(qualified_name(region, row["InstanceId"]))
        raise error

    def _call_unless_missing(
        self, region: str, operation: str, **parameters: Any
    ) -> dict[str, Any]:
        try:
            return self._clients.call(region, operation, **parameters)
        except ProviderError as error:
            if error.code in NOT_FOUND:
                return {}
            raise


def _launched(region: str, answer: dict[str, Any]) -> Launched:
    rows: Iterable[Any] = answer.get("Instances") or ()
    for row in rows:
        return Launched(qualified_name(region, row["InstanceId"]))
    raise UnknownOutcome(f"{region}: RunInstances answered without a machine")
