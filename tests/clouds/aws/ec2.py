"""EC2 on this computer: moto, plus the behaviour that it lacks.

Client tokens are idempotent by zone, pools have prices and run out, spot machines have requests,
filters and errors are EC2's. Everything that a client sees goes over HTTP in EC2's protocol and is
parsed by botocore.
"""

from __future__ import annotations

import hashlib
import io
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

from moto.backends import get_backend

from providers.aws.listing import split_name
from tests.clouds.aws import fis, replies
from tests.clouds.aws.consoles import Consoles
from tests.clouds.aws.fleet import Ec2Fleet
from tests.clouds.aws.groups import Groups
from tests.clouds.aws.images import Images
from tests.clouds.aws.market import ZONE_IDS, Market
from tests.clouds.aws.replies import REFUSALS, Tree
from tests.clouds.aws.signature import key_of, signed_for
from tests.clouds.faults import Fault, Faults
from tests.clouds.machines import Machines

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

ACCOUNT = "123456789012"
IMAGE_PARAMETER = (
    "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
)
JSON = "application/x-amz-json-1.1"
_VOLATILE = ("Action", "Version", "DryRun")
# What nobody changes: moto looks through all that it knows each time.
_STANDING = ("DescribeInstanceTypes", "DescribeAvailabilityZones")
NOTICE = timedelta(seconds=120)
QUOTA = 1000.0  # vCPUs

Reply = tuple[int, bytes]


@dataclass(frozen=True)
class Seen:
    """A received request to any service; `body` has EC2's parameters, or the JSON of other
    services. `key` is the access key of its signature."""

    key: str
    region: str
    service: str
    action: str
    body: Mapping[str, Any]


@dataclass
class Made:
    """The result of a client token."""

    body: str
    instance: str


@dataclass
class SpotRequest:
    """The spot request behind a spot machine."""

    ident: str
    instance: str
    tags: dict[str, str]
    code: str = "fulfilled"
    message: str = ""
    updated: datetime = field(default_factory=lambda: datetime.now(UTC))


class Ec2:
    """A WSGI application; `image` is the AMI that the parameter of GPU images names. With
    `machines`, a real machine is behind every instance; without, its address leads nowhere."""

    def __init__(self, app: WSGIApplication, machines: Machines | None = None) -> None:
        self._app = app
        self.fleet = Ec2Fleet(machines, self._switched_off)
        self._lock = threading.RLock()
        self.market = Market()
        self.faults = Faults()
        self.image = ""
        self.calls: list[tuple[str, dict[str, str]]] = []  # every request of EC2's, in order
        self.seen: list[Seen] = []  # and every one of all services
        self.told: list[dict[str, Tree]] = []  # more rows of the price history
        self.requests: dict[str, SpotRequest] = {}  # by instance
        self.groups = Groups(ACCOUNT)
        self._made: dict[tuple[str, str, str], Made] = {}
        self._kept: dict[tuple[str, str], Reply] = {}  # by region and question
        self.consoles = Consoles()
        self.images = Images(ACCOUNT)
        self.experiments = fis.Experiments(ACCOUNT, self.interrupt)
        self._own: dict[str, Callable[[str, dict[str, str]], Reply | None]] = {
            "RunInstances": self._run,
            "DescribeSpotPriceHistory": self._history,
            "DescribeInstanceTypeOfferings": self._offerings,
            "DescribeCapacityReservations": self._reservations,
            "DescribeSpotInstanceRequests": self._spot_requests,
            "GetConsoleOutput": self.consoles.answer,
            "GetSpotPlacementScores": lambda _, form: replies.scores(self.market.scores, form),
            **self.groups.verbs(),
            "CreateImage": self.images.create,
        }
        self.reservations: list[dict[str, Tree]] = []
        self.quotas: dict[tuple[str, str], float] = {}  # (region, code), where it is not QUOTA

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        size = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(size)
        region, service = signed_for(environ)
        target = str(environ.get("HTTP_X_AMZ_TARGET", ""))
        if service == "fis":
            return self._fault_injection(environ, start, region, body)
        self._note(key_of(environ), region, service, target, body)
        if b"GetCallerIdentity" in body and self.faults.take("GetCallerIdentity") is not None:
            return _send(start, *replies.error(*REFUSALS["not_enabled"]))
        if service != "ec2":
            reported = self._beside(region, service, target, body)
            return (
                _send(start, *reported, kind=JSON) if reported else self._moto(environ, start, body)
            )
        form = dict(parse_qsl(body.decode()))
        action = form["Action"]
        with self._lock:
            self.calls.append((action, form))
        fault = self.faults.take(action) or self.faults.take(f"{action} in {region}")
        if fault is not None and fault.what in REFUSALS:
            return _send(start, *replies.error(*REFUSALS[fault.what]))
        if fault is not None and fault.what == "invisible":
            return _send(start, *replies.unseen(action, form))
        if fault is not None and fault.what == "garbage":
            return _send(start, 200, b"<html>a proxy's page", kind="text/html")
        if form.get("DryRun") == "true":
            return _send(start, *self._would(region, action, form))
        with self._lock:
            status, answer = self._answer(environ, region, action, form, fault)
        if fault is not None and fault.what == "hang":
            time.sleep(fault.seconds)
        if fault is not None and fault.what == "lost_reply":
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionAbortedError("the answer is lost")
        return _send(start, status, answer)

    def _fault_injection(
        self, environ: WSGIEnvironment, start: StartResponse, region: str, body: bytes
    ) -> Iterable[bytes]:
        """Answer FIS, which uses REST."""
        path = str(environ["PATH_INFO"])
        action = fis.action_of(str(environ["REQUEST_METHOD"]), path)
        with self._lock:
            received = fis.asked_of(path, body)
            self.seen.append(Seen(key_of(environ), region, "fis", action, received))
        fault = self.faults.take(action)
        if fault is not None:
            error_text = {"__type": "AccessDeniedException", "message": "You may not."}
            return _send(start, 403, json.dumps(error_text).encode(), kind=JSON)
        reported: list[str] = []

        def begin(status: str, *_: Any) -> Callable[[bytes], object]:
            reported.append(status)
            return lambda _: None

        answer = b"".join(self._app(_with(environ, body), begin))
        status = int(reported[0].split()[0])
        if action == "StartExperiment" and status == 200:
            answer = self.experiments.begin(region, answer)
        return _send(start, status, answer, kind="application/json")

    def _beside(
        self, region: str, service: str, target: str, body: bytes
    ) -> tuple[int, bytes] | None:
        """Answer other services where moto has no or different behaviour."""
        if service == "pricing":
            return self._products(json.loads(body))
        if service == "servicequotas":
            return self._quota(region, json.loads(body))
        if target.endswith("GetParameter") and IMAGE_PARAMETER in body.decode():
            parameter = {"Name": IMAGE_PARAMETER, "Type": "String", "Value": self.image}
            return 200, json.dumps({"Parameter": parameter}).encode()
        return None

    def _note(self, key: str, region: str, service: str, target: str, body: bytes) -> None:
        parsed = json.loads(body) if target else dict(parse_qsl(body.decode(errors="replace")))
        action = target.rpartition(".")[2] or str(parsed.get("Action", ""))
        with self._lock:
            self.seen.append(Seen(key, region, service, action, parsed))

    # --- what a test does to the cloud

    def interrupt(self, instance: str, at: datetime | None = None) -> None:
        """Mark the machine's spot request and publish the notice in its metadata; terminate it 120
        s after `at` (default: now)."""
        at = at or datetime.now(UTC)
        request = self.requests[instance]
        request.code = "marked-for-termination"
        request.message = "Your Spot instance is marked for termination."
        request.updated = at
        end_us = int((at + NOTICE).timestamp() * 1e6)
        self.fleet.take(instance, end_us, lambda: self._take(instance))

    def end(self, region: str, instance: str, code: str, words: str) -> None:
        """Terminate the machine, with EC2's reason."""
        with self._lock:
            machine = get_backend("ec2")[ACCOUNT][region].get_instance(instance)
            if machine.state in ("terminated", "shutting-down"):
                return
            machine.terminate()
            machine.state_reason.code, machine.state_reason.message = code, words
        self.fleet.end(instance)

    def _take(self, instance: str) -> None:
        """Terminate a machine whose notice time is over."""
        code = "Server.SpotInstanceTermination"
        self.requests[instance].code = "instance-terminated-no-capacity"
        self.end(self._region(instance), instance, code, f"{code}: It was taken away")

    def _switched_off(self, instance: str) -> None:
        """Terminate a machine that was powered off from inside."""
        code = "Client.InstanceInitiatedShutdown"
        error_text = f"{code}: Instance initiated shutdown"
        self.end(self._region(instance), instance, code, error_text)

    def _region(self, instance: str) -> str:
        return split_name(self.fleet.books[instance].instance_id)[0]

    # --- answers

    def _answer(
        self,
        environ: WSGIEnvironment,
        region: str,
        action: str,
        form: dict[str, str],
        fault: Fault | None,
    ) -> Reply:
        own = self._own.get(action)
        reply = own(region, form) if own is not None else None
        if reply is None:
            if action == "DescribeInstances":
                form = self._by_token(region, form)
            reply = self._kept.get((region, urlencode(form))) or self._ask_moto(environ, form)
            if action in _STANDING:
                self._kept[region, urlencode(form)] = reply
            if action == "DescribeInstances":
                reply = reply[0], self.groups.dress(reply[1])
            if action == "RunInstances" and reply[0] == 200:
                reply = self._note_launch(region, form, fault, reply)
            if action == "TerminateInstances" and reply[0] == 200:
                for instance in replies.listed(form, "InstanceId"):
                    self.fleet.end(instance)
        if action == "TerminateInstances" and fault is not None and fault.what == "leftovers":
            for instance in replies.listed(form, "InstanceId"):
                self._leave_behind(region, instance)
        return reply

    def _would(self, region: str, action: str, form: dict[str, str]) -> Reply:
        """Answer a dry run: permissions (by a fault, here) and named resources are checked,
        capacity is not, and nothing is done."""
        backend = get_backend("ec2")[ACCOUNT][region]
        for resource_id in replies.listed(form, "InstanceId"):
            if all(instance.id != resource_id for instance in backend.all_instances()):
                error_text = f"The instance ID '{resource_id}' does not exist"
                return replies.error(400, "InvalidInstanceID.NotFound", error_text)
        if action == "RunInstances" and form["InstanceType"] not in self.market.listed:
            error_text = f"Invalid value '{form['InstanceType']}' for InstanceType."
            return replies.error(400, "InvalidParameterValue", error_text)
        error_text = "Request would have succeeded, but DryRun flag is set."
        return replies.error(412, "DryRunOperation", error_text)

    def _quota(self, region: str, document: Mapping[str, Any]) -> Reply:
        """Answer Service Quotas for EC2."""
        fault = self.faults.take("GetServiceQuota")
        if fault is not None:
            error_text = {"__type": "AccessDeniedException", "message": "You may not."}
            return 400, json.dumps(error_text).encode()
        code = document["QuotaCode"]
        quota = {
            "ServiceCode": document["ServiceCode"],
            "QuotaCode": code,
            "QuotaName": code,
            "Value": self.quotas.get((region, code), QUOTA),
            "Unit": "None",
            "Adjustable": True,
            "GlobalQuota": False,
        }
        return 200, json.dumps({"Quota": quota}).encode()

    def _run(self, region: str, form: dict[str, str]) -> Reply | None:
        backend = get_backend("ec2")[ACCOUNT][region]
        subnet = form.get("NetworkInterface.1.SubnetId", "")
        if subnet not in {subnet.id for subnet in backend.describe_subnets()}:
            return replies.error(
                400, "InvalidSubnetID.NotFound", f"The subnet ID '{subnet}' does not exist"
            )
        zone = next(
            item for item in backend.describe_subnets() if item.id == subnet
        ).availability_zone
        body = urlencode(sorted((k, v) for k, v in form.items() if k not in _VOLATILE))
        made = self._made.get((region, zone, form["ClientToken"]))
        if made is not None:
            if made.body != hashlib.sha256(body.encode()).hexdigest():
                return replies.error(*REFUSALS["mismatch"])
            return replies.answer("RunInstances", _ran(backend.get_instance(made.instance)))
        kind = form["InstanceType"]
        if kind not in self.market.listed:
            error_text = f"Invalid value '{kind}' for InstanceType."
            return replies.error(400, "InvalidParameterValue", error_text)
        unknown = self.groups.refuse(region, form)
        if unknown is not None:
            return unknown
        most = form.get("InstanceMarketOptions.SpotOptions.MaxPrice")
        if most and float(most) < self.market.spot.get(kind, {}).get(zone, 0.0):
            return replies.error(*REFUSALS["price"])
        if not self.market.take(kind, zone):
            return replies.error(*REFUSALS["no_capacity"])
        return None

    def _note_launch(
        self, region: str, form: dict[str, str], fault: Fault | None, reply: Reply
    ) -> Reply:
        """Return the reply with the machine's address instead of moto's invention."""
        backend = get_backend("ec2")[ACCOUNT][region]
        machine = max(
            (
                instance
                for instance in backend.all_instances()
                if instance.client_token == form["ClientToken"]
            ),
            key=lambda item: str(item.launch_time),
        )
        body = urlencode(sorted((k, v) for k, v in form.items() if k not in _VOLATILE))
        digest = hashlib.sha256(body.encode()).hexdigest()
        zone = machine.availability_zone
        self._made[region, zone, form["ClientToken"]] = Made(digest, machine.id)
        if form.get("Placement.GroupName"):
            self.groups.machines[machine.id] = form["Placement.GroupName"]
        if form.get("InstanceMarketOptions.MarketType") == "spot":
            resource_id = f"sir-{machine.id[-8:]}"
            tags = {tag["key"]: tag["value"] for tag in machine.get_tags()}
            self.requests[machine.id] = SpotRequest(resource_id, machine.id, tags)
        answer = self.fleet.launch(region, machine, form.get("UserData", ""), reply[1])
        if fault is not None and fault.what == "fails_later":
            error_text = "Server.InsufficientInstanceCapacity: There is no capacity any more"
            self.end(region, machine.id, "Server.InsufficientInstanceCapacity", error_text)
        return reply[0], answer

    def _by_token(self, region: str, form: dict[str, str]) -> dict[str, str]:
        """Replace a filter by client token, which moto lacks, by instance ids."""
        tokens = replies.filters(form).get("client-token")
        if tokens is None:
            return form
        ids = [
            made.instance
            for (where, _, token), made in self._made.items()
            if where == region and token in tokens
        ]
        stored = {k: v for k, v in form.items() if not k.startswith("Filter.")}
        return stored | {f"InstanceId.{n}": one for n, one in enumerate(ids or ["i-0"], 1)}

    def _leave_behind(self, region: str, instance: str) -> None:
        backend = get_backend("ec2")[ACCOUNT][region]
        machine = backend.get_instance(instance)
        volume = backend.create_volume(size=200, zone_name=machine.availability_zone)
        volume.add_tags({tag["key"]: tag["value"] for tag in machine.get_tags()})

    def _history(self, region: str, form: dict[str, str]) -> Reply:
        kinds = replies.listed(form, "InstanceType")
        rows: list[Tree] = [
            {
                "instanceType": kind,
                "productDescription": "Linux/UNIX",
                "spotPrice": f"{usd:.6f}",
                "timestamp": "2026-11-22T10:00:00.000Z",
                "availabilityZone": zone,
                "availabilityZoneId": ZONE_IDS[zone],
            }
            for kind in kinds
            for zone, usd in self.market.spot.get(kind, {}).items()
            if zone.startswith(region)
        ]
        rows += [row for row in self.told if row["instanceType"] in kinds]
        return replies.answer("DescribeSpotPriceHistory", {"spotPriceHistorySet": rows})

    def _offerings(self, region: str, form: dict[str, str]) -> Reply:
        patterns = replies.filters(form).get("instance-type", ["*"])
        rows: list[Tree] = [
            {"instanceType": kind, "locationType": "availability-zone", "location": zone}
            for kind, zones in self.market.spot.items()
            for zone in zones
            if zone.startswith(region) and any(fnmatchcase(kind, pattern) for pattern in patterns)
        ]
        return replies.answer("DescribeInstanceTypeOfferings", {"instanceTypeOfferingSet": rows})

    def _reservations(self, region: str, form: dict[str, str]) -> Reply:
        rows: list[Tree] = [
            row for row in self.reservations if str(row["availabilityZone"]).startswith(region)
        ]
        return replies.answer("DescribeCapacityReservations", {"capacityReservationSet": rows})

    def _spot_requests(self, region: str, form: dict[str, str]) -> Reply:
        wanted = replies.filters(form)
        codes = wanted.get("status-code", [])
        tags = {k.removeprefix("tag:"): v for k, v in wanted.items() if k.startswith("tag:")}
        here = {instance.id for instance in get_backend("ec2")[ACCOUNT][region].all_instances()}
        rows: list[Tree] = [
            {
                "spotInstanceRequestId": request.ident,
                "instanceId": request.instance,
                "status": {
                    "code": request.code,
                    "message": request.message,
                    "updateTime": request.updated.strftime("%Y-%m-%dT%H:%M:%S.000Z"),
                },
                "tagSet": replies.tag_set(request.tags),
            }
            for request in self.requests.values()
            if request.instance in here
            and request.code in codes
            and all(request.tags.get(key) in values for key, values in tags.items())
        ]
        return replies.answer("DescribeSpotInstanceRequests", {"spotInstanceRequestSet": rows})

    def _products(self, document: Mapping[str, Any]) -> Reply:
        """Answer the Price List: each product is a JSON document in a string."""
        if self.faults.take("GetProducts") is not None:
            failed = {"__type": "InternalErrorException", "message": "not now"}
            return 500, json.dumps(failed).encode()
        kinds = next(f["Value"] for f in document["Filters"] if f["Field"] == "instanceType")
        prices = []
        for kind in kinds.split(","):
            if kind in self.market.listed:
                usd = f"{self.market.listed[kind]:.10f}"
                dimension = {"unit": "Hrs", "pricePerUnit": {"USD": usd}}
                product = {"attributes": {"instanceType": kind}, "sku": kind}
                term = {"priceDimensions": {"d": dimension}}
                prices.append(json.dumps({"product": product, "terms": {"OnDemand": {"t": term}}}))
        return 200, json.dumps({"FormatVersion": "aws_v1", "PriceList": prices}).encode()

    # --- moto

    def _ask_moto(self, environ: WSGIEnvironment, form: dict[str, str]) -> Reply:
        body = urlencode(form).encode()
        reported: list[int] = []

        def start(status: str, headers: Any, error: Any = None) -> Callable[[bytes], object]:
            reported.append(int(status.split(maxsplit=1)[0]))
            return lambda _: None

        answer = b"".join(self._app(_with(environ, body), start))
        return reported[0], answer

    def _moto(self, environ: WSGIEnvironment, start: StartResponse, body: bytes) -> Iterable[bytes]:
        return self._app(_with(environ, body), start)


def _with(environ: WSGIEnvironment, body: bytes) -> WSGIEnvironment:
    return {**environ, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}


def _send(
    start: StartResponse, status: int, body: bytes, kind: str = "text/xml"
) -> Iterable[bytes]:
    start(f"{status} OK", [("Content-Type", kind), ("Content-Length", str(len(body)))])
    return [body]


def _ran(machine: Any) -> dict[str, Tree]:
    row: dict[str, Tree] = {
        "instanceId": machine.id,
        "instanceState": {"code": machine.state_code, "name": machine.state},
        "instanceType": machine.instance_type,
        "clientToken": machine.client_token,
    }
    return {"reservationId": "r-0", "ownerId": ACCOUNT, "instancesSet": [row]}
