"""Compute Engine on this computer, as far as the adapter calls it.

Request ids are idempotent for ever, names are unique in a zone, creates are accepted and take
effect later, lists have pages and report unreachable zones. Everything goes over HTTP and is
validated against Google's own description of the API, requests and replies alike: a mismatch is
refused, and stored in `problems`.
"""

from __future__ import annotations

import copy
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

from tests.clouds.faults import Fault, Faults
from tests.clouds.fleet import Fleet, now_us
from tests.clouds.gcp import market, replies
from tests.clouds.gcp.account import Asked
from tests.clouds.gcp.discovery import Api, Method, ShapeError
from tests.clouds.gcp.facts import Facts, description
from tests.clouds.gcp.identity import Identity
from tests.clouds.gcp.images import Images
from tests.clouds.gcp.machines import Machines
from tests.clouds.gcp.policies import Policies
from tests.clouds.gcp.replies import FAILURES, REFUSALS, HttpError, Row, filter_of
from tests.clouds.gcp.state import Project, stamp
from tests.clouds.machines import Machines as RealMachines

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

SHUTDOWN_S = 30.0  # the most that Compute Engine gives, and promises not
_EMPTY = {"code": "NO_RESULTS_ON_PAGE", "message": "There are no results for scope."}


@dataclass(frozen=True)
class Call:
    """A received request: first line, method, parameters of path and query, body."""

    line: str
    method: str
    given: dict[str, str]
    body: Any


class Gce:
    """A WSGI application. `delay_s` is the duration of operations, `page` the maximum page size,
    `unreachable` the zones that do not answer. With `machines`, a real machine is behind every
    instance."""

    def __init__(self, identity: Identity, machines: RealMachines | None = None) -> None:
        self._lock = threading.RLock()
        self._identity = identity
        self.faults = Faults()
        self.market = market.Market()
        self.fleet = Fleet(machines)
        self.machines = Machines(self.market, self.fleet)
        self.policies = Policies()
        self.images = Images(self.machines)
        self.projects: dict[str, Project] = {}
        self.calls: list[Call] = []
        self.problems: list[str] = []
        self.page = 500
        self.unreachable: set[str] = set()
        self.facts = Facts(self.machines)
        self.host = ""
        self._own: dict[str, Callable[[Asked], Row]] = {
            "compute.instances.insert": self._insert,
            "compute.instances.get": self._get,
            "compute.instances.delete": self._delete,
            "compute.instances.setLabels": self._set_labels,
            "compute.instances.simulateMaintenanceEvent": self._simulate,
            "compute.instances.getGuestAttributes": self._guest_attributes,
            "compute.instances.getSerialPortOutput": self._serial_port,
            "compute.instances.aggregatedList": self._instances,
            "compute.zoneOperations.get": self._operation,
            "compute.globalOperations.aggregatedList": self._operations,
            "compute.machineTypes.aggregatedList": self._machine_types,
            "compute.disks.aggregatedList": self._disks,
            "compute.disks.delete": self._delete_disk,
            "compute.images.insert": self._insert_image,
            "compute.images.list": self._images,
            "compute.images.delete": self._delete_image,
            "compute.reservations.aggregatedList": self._reservations,
            "compute.advice.capacityHistory": self._history,
            "compute.advice.capacity": lambda asked: self.market.advice(asked.body),
            "cloudbilling.services.skus.list": self._skus,
            **self.policies.verbs(self._aggregated_by_region),
            **self.facts.answers(),
        }

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        size = int(environ.get("CONTENT_LENGTH") or 0)
        text = environ["wsgi.input"].read(size)
        path = str(environ["PATH_INFO"])
        if path == "/token":
            return _send(start, *self._identity.refuse())
        described = description(path)
        try:
            method = described.method(str(environ["REQUEST_METHOD"]), path)
            query = dict(parse_qsl(str(environ.get("QUERY_STRING", ""))))
            described.check_parameters(method, query)
            body = json.loads(text) if text else None
            if method.request:
                described.check(method.request, body)
        except ShapeError as error:
            return self._wrong(start, f"asked: {error}")
        passed = {**method.given, **query}
        line = f"{environ['REQUEST_METHOD']} {path}?{urlencode(query)}".removesuffix("?")
        with self._lock:
            self.calls.append(Call(line, method.ident, passed, copy.deepcopy(body)))
        fault = self.faults.take(method.ident)
        if fault is not None and fault.what == "garbage":
            return _send(start, 200, b"<html>a proxy's page", kind="text/html")
        bearer = str(environ.get("HTTP_AUTHORIZATION", ""))
        status, answer = self._answer(described, method, query, body, fault, bearer)
        if fault is not None and fault.what == "hang":
            self.faults.hang(fault)
        if fault is not None and fault.what == "lost_reply":
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionAbortedError("the answer is lost")
        return _send(start, status, answer)

    # --- what a test does to the cloud

    def project(self, name: str) -> Project:
        """Return the project of that name, creating it if needed."""
        with self._lock:
            gone = lambda key: self.fleet.end(key[1])  # noqa: E731
            return self.projects.setdefault(name, Project(name, self.host, gone=gone))

    def preempt(self, project: str, instance_id: str, left_s: float | None = None) -> None:
        """Preempt a machine: a system operation reports it, and so does its metadata if it is real;
        it is deleted when the operation is done.

        `left_s` replaces the requested notice, or the 30 s of a shutdown without one. Without a
        real machine this happens at once.
        """
        zone, name = instance_id.split("/")
        key = (zone, name)
        with self._lock:
            here = self.project(project)
            machine = here.machines.get(key)
            received = (
                machine.row["scheduling"].get("preemptionNoticeDuration", {}) if machine else {}
            )
            kind, user = "compute.instances.preempted", "system@google.com"
            takes_s = float("inf") if self.fleet.real else 0.0
            work = here.begin(kind, key, takes_s, lambda: None, user=user)
            work.row["statusMessage"] = "Instance was preempted."

        def gone() -> None:
            with self._lock:
                work.due_s = 0.0
                here.advance()
                if here.machines.get(key) is machine:
                    here.remove(key)

        if not self.fleet.real:
            gone()
            return
        notice_s = float(received.get("seconds") or SHUTDOWN_S) if left_s is None else left_s
        self.fleet.take(name, now_us() + int(notice_s * 1e6), gone)

    # --- answers

    def _answer(
        self,
        described: Api,
        method: Method,
        query: dict[str, str],
        body: Any,
        fault: Fault | None,
        bearer: str,
    ) -> tuple[int, bytes]:
        try:
            if not self._identity.knows(bearer):
                raise HttpError(*REFUSALS["unauthenticated"])
            if fault is not None and fault.what in REFUSALS:
                raise HttpError(*REFUSALS[fault.what])
            if fault is not None and fault.what == "invisible" and "List" not in method.ident:
                raise replies.not_found("what is not seen yet")
            with self._lock:
                project = self.project(method.given.get("project", ""))
                project.advance()
                self.machines.boot_all(project)
                received = Asked(project, dict(method.given), query, body, fault)
                answer = json.loads(json.dumps(self._own[method.ident](received)))
        except HttpError as error:
            return error.status, error.body()
        try:
            described.check(method.response, answer)
        except ShapeError as error:
            self.problems.append(f"answered: {method.ident}: {error}")
            return 500, HttpError(500, "internalError", str(error)).body()
        return 200, json.dumps(answer).encode()

    def _wrong(self, start: StartResponse, problem: str) -> Iterable[bytes]:
        self.problems.append(problem)
        return _send(start, 400, HttpError(400, "invalid", problem).body())

    def _insert(self, asked: Asked) -> Row:
        project, zone = asked.project, asked.given["zone"]
        known = project.requests.get(asked.query.get("requestId", ""))
        if known is not None:
            return project.works[known].row
        self.policies.check(project, zone, asked.body)
        failure = FAILURES.get(asked.fault.what) if asked.fault else None
        late_s = asked.fault.seconds if asked.fault and asked.fault.what == "fails_later" else 0.0
        work = self.machines.create(
            project, zone, asked.body, asked.query.get("requestId", ""), failure, late_s
        )
        return work.row

    def _get(self, asked: Asked) -> Row:
        return self.machines.find(asked.project, asked.given["zone"], asked.given["instance"]).row

    def _delete(self, asked: Asked) -> Row:
        leaves = asked.fault is not None and asked.fault.what == "leftovers"
        key = (asked.given["zone"], asked.given["instance"])
        return self.machines.delete(asked.project, key, disk_too=not leaves).row

    def _set_labels(self, asked: Asked) -> Row:
        """With the fault "raced", somebody else sets a label just before."""
        key = (asked.given["zone"], asked.given["instance"])
        if asked.fault is not None and asked.fault.what == "raced":
            self.machines.add_label(asked.project, key, "by", "somebody")
        return self.machines.set_labels(asked.project, key, asked.body).row

    def _simulate(self, asked: Asked) -> Row:
        """Terminate a Spot machine; others restart."""
        key = (asked.given["zone"], asked.given["instance"])
        machine = self.machines.find(asked.project, *key)
        project, resource_id = asked.project.name, "/".join(key)
        kind = "compute.instances.simulateMaintenanceEvent"
        work = asked.project.begin(kind, key, self.machines.delay_s, lambda: None)
        if machine.row["scheduling"]["provisioningModel"] == "SPOT":
            # By and by: it hears of it by a service that may have to tell us something before.
            threading.Timer(0.0, self.preempt, [project, resource_id]).start()
        return work.row

    def _guest_attributes(self, asked: Asked) -> Row:
        passed = asked.given
        items = self.machines.guest_attributes(asked.project, passed["zone"], passed["instance"])
        path = asked.query.get("queryPath", "")
        return {
            "kind": "compute#guestAttributes",
            "queryPath": path,
            "queryValue": {
                "items": [
                    {"namespace": "hostkeys", "key": key, "value": value}
                    for key, value in items.items()
                ]
            },
        }

    def _serial_port(self, asked: Asked) -> Row:
        machine = self.machines.find(asked.project, asked.given["zone"], asked.given["instance"])
        start, data = int(asked.query.get("start", 0)), machine.console.encode()
        return {
            "kind": "compute#serialPortOutput",
            "contents": data[start:].decode(errors="replace"),
            "start": str(max(0, len(data) + start if start < 0 else start)),
            "next": str(len(data)),
        }

    def _operation(self, asked: Asked) -> Row:
        work = asked.project.works.get(asked.given["operation"])
        if work is None:
            path = asked.project.path(asked.given["zone"], "operations", asked.given["operation"])
            raise replies.not_found(path)
        return work.row

    def _delete_disk(self, asked: Asked) -> Row:
        key = (asked.given["zone"], asked.given["disk"])
        return self.machines.delete_disk(asked.project, key).row

    def _instances(self, asked: Asked) -> Row:
        rows = [(zone, one.row) for (zone, _), one in asked.project.machines.items()]
        return self._aggregated(asked, "instance", "instances", rows)

    def _operations(self, asked: Asked) -> Row:
        works = asked.project.works.values()
        rows = [(w.row.get("zone", "").rpartition("/")[2], w.row) for w in works]
        return self._aggregated(asked, "operation", "operations", rows)

    def _machine_types(self, asked: Asked) -> Row:
        host = f"{self.host}/compute/v1/projects/{asked.project.name}"
        rows = [
            (zone, market.machine_type(kind, zone, host))
            for kind, facts in market.TYPES.items()
            for zone in facts[-1]
        ]
        return self._aggregated(asked, "machineType", "machineTypes", rows)

    def _disks(self, asked: Asked) -> Row:
        rows = [(zone, row) for (zone, _), row in asked.project.disks.items()]
        return self._aggregated(asked, "disk", "disks", rows)

    def _insert_image(self, asked: Asked) -> Row:
        known = asked.project.requests.get(asked.query.get("requestId", ""))
        if known is not None:
            return asked.project.works[known].row
        failure = FAILURES.get(asked.fault.what) if asked.fault else None
        return self.images.create(asked.project, asked.body, asked.query, failure).row

    def _delete_image(self, asked: Asked) -> Row:
        """With the fault "went_before", somebody else deletes it just before."""
        name = asked.given["image"]
        if asked.fault is not None and asked.fault.what == "went_before":
            asked.project.images.pop(name)
        return self.images.delete(asked.project, name).row

    def _images(self, asked: Asked) -> Row:
        wanted = filter_of(asked.query.get("filter", ""))
        rows = [row for row in asked.project.images.values() if wanted(row)]
        size, first = min(self.page, 500), int(asked.query.get("pageToken", 0))
        page: Row = {"kind": "compute#imageList", "items": rows[first : first + size]}
        more = {"nextPageToken": str(first + size)} if first + size < len(rows) else {}
        return page | more | ({} if rows else {"warning": {**_EMPTY}})

    def _reservations(self, asked: Asked) -> Row:
        rows = [(row["zone"].rpartition("/")[2], row) for row in asked.project.reservations]
        return self._aggregated(asked, "reservation", "reservations", rows)

    def _aggregated_by_region(
        self, asked: Asked, kind: str, plural: str, rows: list[tuple[str, Row]]
    ) -> Row:
        """Return all regions; an empty one has a warning."""
        wanted = filter_of(asked.query.get("filter", ""))
        regions = {zone.rpartition("-")[0]: zone for zone in market.ZONES}
        items: dict[str, Row] = {f"regions/{region}": {"warning": {**_EMPTY}} for region in regions}
        for region, row in rows:
            if wanted(row):
                scope = items[f"regions/{region}"]
                scope.pop("warning", None)
                scope.setdefault(plural, []).append(row)
        resource_id = f"projects/{asked.project.name}/aggregated/{plural}"
        return {"kind": f"compute#{kind}AggregatedList", "id": resource_id, "items": items}

    def _aggregated(self, asked: Asked, kind: str, plural: str, rows: list[tuple[str, Row]]) -> Row:
        """Return one page. An empty zone has a warning, and so has one that does not answer."""
        wanted = filter_of(asked.query.get("filter", ""))
        hidden = asked.fault is not None and asked.fault.what == "invisible"
        result = [(zone, row) for zone, row in rows if wanted(row) and not hidden]
        size = min(self.page, int(asked.query.get("maxResults", 500)))
        first = int(asked.query.get("pageToken", 0))
        items: dict[str, Row] = {f"zones/{zone}": {"warning": {**_EMPTY}} for zone in market.ZONES}
        for zone in self.unreachable:
            message = f"The zone {zone} could not be reached."
            items[f"zones/{zone}"] = {"warning": {"code": "UNREACHABLE", "message": message}}
        for zone, row in result[first : first + size]:
            scope = items.setdefault(f"zones/{zone}" if zone else "global", {})
            if zone not in self.unreachable:
                scope.pop("warning", None)
                scope.setdefault(plural, []).append(row)
        page: Row = {
            "kind": f"compute#{kind}AggregatedList",
            "id": f"projects/{asked.project.name}/aggregated/{plural}",
            "items": items,
        }
        if first + size < len(result):
            page["nextPageToken"] = str(first + size)
        return page

    def _history(self, asked: Asked) -> Row:
        kind = asked.body["instanceProperties"]["machineType"]
        usd = self.market.history.get((kind, asked.given["region"]))
        if asked.body["instanceProperties"]["scheduling"]["provisioningModel"] != "SPOT":
            raise HttpError(400, "invalid", "This field must be set to SPOT.")
        if usd is None:
            raise HttpError(400, "invalid", f"There is no history of {kind}.")
        days = [(usd * 3, 2 * 86_400), (usd, 3600)]
        return {
            "location": asked.body["locationPolicy"]["location"],
            "machineType": kind,
            "priceHistory": [
                {
                    "interval": {"startTime": stamp(time.time() - ago_s)},
                    "listPrice": _money(price),
                }
                for price, ago_s in days
            ],
        }

    def _skus(self, asked: Asked) -> Row:
        rows, first = [*self.market.skus()], int(asked.query.get("pageToken", 0))
        size = min(self.page, int(asked.query.get("pageSize", 5000)))
        more = str(first + size) if first + size < len(rows) else ""
        return {"skus": rows[first : first + size], "nextPageToken": more}


def _money(usd: float) -> Row:
    units, nanos = divmod(round(usd * 1_000_000_000), 1_000_000_000)
    return {"currencyCode": "USD", "units": str(units), "nanos": nanos}


def _send(
    start: StartResponse, status: int, body: bytes, kind: str = "application/json"
) -> Iterable[bytes]:
    start(f"{status} OK", [("Content-Type", kind), ("Content-Length", str(len(body)))])
    return [body]
