"""The adapter: the verbs of the port, spoken to EC2."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from providers import cloud_init
from providers.aws import fault_injection, groups, leftovers
from providers.aws.clients import Clients
from providers.aws.codes import CODES, MISMATCH, NOBODYS, NOT_LIVE
from providers.aws.images import Images
from providers.aws.interruption_warnings import Warnings
from providers.aws.launch import Fabric, run_instances
from providers.aws.listing import (
    DEPLOYMENT_TAG,
    instances_of,
    name_of,
    parted,
    read_instance,
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
from providers.fault_injection import Interruption, not_to_be_taken
from providers.images import Image
from providers.readiness import CapacityNeed, Finding
from providers.warnings import ProviderWarning

DOCKER = "docker:"
_ENDED = ("shutting-down", "terminated")


class AwsCloud:
    """EC2 in some regions of one account."""

    local = False
    watcher = "aws"
    limits_life = False
    # Behaviour at shutdown is terminate: what is off is gone.
    power_off = ("sudo", "-n", "shutdown", "-h", "now")
    prepared_file = cloud_init.STATE
    # EC2 promises nothing; what it tells is eventually consistent, mostly within seconds.
    visibility_s = 60.0
    interruption_usd = fault_injection.MOST_USD

    def __init__(
        self, name: str, deployment: str, clients: Clients | None = None, **settings: Any
    ) -> None:
        """`settings` are those of `Settings`; `clients` those of another adapter with the same
        profile and patience, whose connections stand."""
        given = self._settings = Settings(**settings)
        self.name = name
        self._deployment = deployment
        self._regions = tuple(given.regions)
        self._clients = clients or Clients(given.profile, given.timeout_s)
        self._market = Market(
            self._clients,
            name,
            self._regions,
            given.instance_types,
            many_cards=given.network != "public",
            reservations=given.reservations,
        )
        self._sites = ZoneSetups(self._clients, given.image, given.network, given.node_role)
        self._images = Images(self._clients, self._regions, deployment)
        self._warnings = {
            region: Warnings(self._clients, region, deployment, given.queue)
            for region in self._regions
        }

    def offers(self, request: OfferRequest) -> Sequence[Offer]:
        """What fits and is on sale now, with spot prices of this moment, in the regions that
        answer."""
        return [offer for offer in self._market.offers() if request.admits(offer)]

    def launch(self, request: LaunchRequest) -> Launched | Pending:
        """RunInstances in one zone, once: what comes of it is known at once, or not at all."""
        region = request.region
        tags = {**request.tags, DEPLOYMENT_TAG: self._deployment}
        if groups.group_of(request):
            groups.make(self._clients, request, tags)
        try:
            answer = self._clients.call(region, "run_instances", **self._body(request, tags))
        except RejectedError as error:
            if error.code != MISMATCH:
                raise
            return self._launched_before(request, tags, error)
        return _launched(region, answer)

    def terminate(self, instance_id: str) -> None:
        """End a machine; an unknown id is success."""
        region, instance = parted(instance_id)
        if region:
            self._unless_nobodys(region, "terminate_instances", InstanceIds=[instance])

    def list(self) -> Sequence[Instance]:
        """Every machine of ours in all regions, those that EC2 still shows after their end
        included."""
        ours = [tag_filter(self._deployment)]
        answers = self._clients.everywhere(
            self._regions,
            lambda region: instances_of(
                self._clients.pages(region, "describe_instances", "Reservations", Filters=ours)
            ),
        )
        return [read_instance(region, row) for region, rows in answers for row in rows]

    def notices(self) -> Sequence[Notice]:
        """Spot requests that are marked, and what EventBridge has put into the queue. A region
        that fails takes no warning of another along; it is told when there is none."""
        answers = self._clients.everywhere(
            self._regions, lambda region: [self._warnings[region].read()]
        )
        heard = [answer for _, [answer] in answers]
        found = [notice for notices, _ in heard for notice in notices]
        for _, failed in heard:
            if failed is not None and not found:
                raise failed
        return found

    def renew(self, instance_id: str, expires_at_us: int) -> None:
        """Move the expiry tag on; an unknown id, and a machine that ends, are success."""
        region, instance = parted(instance_id)
        if not region:
            return
        answer = self._unless_nobodys(region, "describe_instances", InstanceIds=[instance])
        for row in instances_of(answer.get("Reservations") or ()):
            known = read_instance(region, row)
            if row["State"]["Name"] in _ENDED or known.expires_at_us >= expires_at_us:
                continue
            tag = {"Key": EXPIRES_TAG, "Value": str(expires_at_us // 1_000_000)}
            self._unless_nobodys(region, "create_tags", Resources=[instance], Tags=[tag])

    def leftovers(self) -> Sequence[Leftover]:
        """Volumes, interfaces and addresses of ours that hang on nothing, and placement groups
        without a machine."""
        answers = self._clients.everywhere(
            self._regions, lambda region: leftovers.find(self._clients, region, self._deployment)
        )
        return [left for _, found in answers for left in found]

    def discard(self, leftover_id: str) -> None:
        """Delete one; EC2 itself refuses what hangs on a machine."""
        region, resource = parted(leftover_id)
        if region:
            leftovers.discard(self._clients, region, resource)

    def remarks(self) -> Sequence[ProviderWarning]:
        """See Remarking.remarks."""
        return [*CODES.remarks(), *self._market.remarks()]

    def console(self, instance_id: str) -> str:
        """See Console.console. What EC2 wrote down last of types that do not tell it live."""
        region, instance = parted(instance_id)
        if not region:
            return ""
        try:
            answer = self._unless_nobodys(
                region, "get_console_output", InstanceId=instance, Latest=True
            )
        except RejectedError as error:
            if error.code != NOT_LIVE:
                raise
            answer = self._unless_nobodys(region, "get_console_output", InstanceId=instance)
        return str(answer.get("Output") or "")  # the SDK has read its base64

    def examine(self, needs: Sequence[CapacityNeed]) -> Sequence[Finding]:
        """See providers/readiness.py. Nothing that was looked up before is believed."""
        fresh = AwsCloud(self.name, self._deployment, self._clients, **vars(self._settings))
        return ReadinessCheck(fresh._clients, self._settings, self._deployment, fresh._body).run(
            needs
        )

    def _body(self, request: LaunchRequest, tags: Mapping[str, str]) -> dict[str, Any]:
        """The parameters of RunInstances. Raises ProviderError."""
        image = "" if request.image_id.startswith(DOCKER) else request.image_id
        site = self._sites.site(request.region, request.zone, image)
        fabric = Fabric()
        if request.interconnect:
            machine = self._market.machine_type(request.region, request.instance_type)
            fabric = Fabric(machine.efa_cards if machine else 0)
        group, user_data = groups.group_of(request), cloud_init.user_data(request)
        return run_instances(request, tags, site, user_data, fabric, group)

    def make_image(self, instance_id: str, name: str, tags: Mapping[str, str]) -> Image:
        """See ImageMaker: an AMI, in the machine's region."""
        return self._images.make(instance_id, name, tags)

    def images(self) -> Sequence[Image]:
        """See ImageMaker: of all regions."""
        return self._images.all()

    def remove_image(self, image_id: str) -> None:
        """See ImageMaker: the AMI and its snapshots."""
        self._images.remove(image_id)

    def interrupt(self, instance_id: str) -> Interruption:
        """See Interrupter: by an experiment of FIS."""
        region, instance = parted(instance_id)
        answer = (
            self._unless_nobodys(region, "describe_instances", InstanceIds=[instance])
            if region
            else {}
        )
        for row in instances_of(answer.get("Reservations") or ()):
            ours = tags_of(row).get(DEPLOYMENT_TAG) == self._deployment
            if ours and read_instance(region, row).capacity_type is CapacityType.SPOT:
                return fault_injection.interrupt(self._clients, self._deployment, region, instance)
        raise not_to_be_taken(instance_id)

    def _launched_before(
        self, request: LaunchRequest, tags: dict[str, str], error: RejectedError
    ) -> Launched:
        """The machine that this token made with another body. The same request may have become
        another body meanwhile (a newer image behind the same parameter); a machine with its tags
        is what it asks for. Raises the vendor's rejection for any other."""
        region = request.region
        token = [{"Name": "client-token", "Values": [request.token]}]
        rows = self._clients.pages(region, "describe_instances", "Reservations", Filters=token)
        for row in instances_of(rows):
            theirs = tags_of(row) | {EXPIRES_TAG: tags.get(EXPIRES_TAG, "")}
            if {k: v for k, v in theirs.items() if v} == tags:
                return Launched(name_of(region, row["InstanceId"]))
        raise error

    def _unless_nobodys(self, region: str, operation: str, **parameters: Any) -> dict[str, Any]:
        try:
            return self._clients.call(region, operation, **parameters)
        except ProviderError as error:
            if error.code in NOBODYS:
                return {}
            raise


def _launched(region: str, answer: dict[str, Any]) -> Launched:
    rows: Iterable[Any] = answer.get("Instances") or ()
    for row in rows:
        return Launched(name_of(region, row["InstanceId"]))
    raise UnknownOutcome(f"{region}: RunInstances answered without a machine")
