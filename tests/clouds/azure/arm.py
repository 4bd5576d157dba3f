"""Azure Resource Manager on this computer, as far as the adapter uses it: the answers, without the
wire (serving.py).

Requests and answers are validated against the SDK's models. Mismatches go into `wrong`, and a test
that ends with entries there fails.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.clouds.azure.account import Account
from tests.clouds.azure.catalog import Catalog
from tests.clouds.azure.facts import Facts
from tests.clouds.azure.held import Held, Reply
from tests.clouds.azure.images import IMAGES, KINDS, SNAPSHOTS, Images
from tests.clouds.azure.machines import NOTICE_S, Machine, World
from tests.clouds.azure.refusals import ALLOCATION, IN_USE, REFUSALS, error
from tests.clouds.azure.shapes import problems
from tests.clouds.faults import Faults
from tests.clouds.fleet import Fleet
from tests.clouds.machines import Machines
from tests.fixtures.later import Later

SUBSCRIPTION = "11111111-2222-3333-4444-555555555555"
TENANT = "66666666-7777-8888-9999-000000000000"
TOKEN = "a-token"
IMAGE = ("microsoft-dsvm", "ubuntu-hpc", "2204", "latest")
COMPUTE: Any = Later("azure.mgmt.compute.models")
NETWORK: Any = Later("azure.mgmt.network.models")
VM = "Microsoft.Compute/virtualMachines"
HELD = "Microsoft.Compute/capacityReservationGroups"
SET = "Microsoft.Compute/availabilitySets"
# kind -> (models, model)
MODELS = {
    VM: (COMPUTE, "VirtualMachine"),
    HELD: (COMPUTE, "CapacityReservationGroup"),
    SET: (COMPUTE, "AvailabilitySet"),
    "Microsoft.Compute/disks": (COMPUTE, "Disk"),
    SNAPSHOTS: (COMPUTE, "Snapshot"),
    IMAGES: (COMPUTE, "Image"),
    "Microsoft.Compute/skus": (COMPUTE, "ResourceSku"),
    "Microsoft.Network/networkInterfaces": (NETWORK, "NetworkInterface"),
    "Microsoft.Network/publicIPAddresses": (NETWORK, "PublicIPAddress"),
}
_KINDS = {kind.lower(): kind for kind in MODELS}
_READ_ONLY = ("provisioningState", "vmId", "timeCreated", "instanceView")


@dataclass(frozen=True)
class Request:
    """A received request."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any = None

    @property
    def call(self) -> str:
        """A short description: "PUT virtualMachines", "LIST disks", "GET prices"."""
        result = re.fullmatch(r"/subscriptions/.*/providers/(.+)", self.path, re.IGNORECASE)
        if not result:
            if self.path.startswith("/subscriptions/"):
                return f"{self.method} subscriptions"
            if self.path.startswith("/providers/"):
                return f"{self.method} {self.path.rpartition('/')[2]}"
            return f"{self.method} {'prices' if 'retail' in self.path else 'token'}"
        parts = result[1].split("/")
        if parts[1].lower() == "locations":
            return f"{self.method} {parts[3]}"
        method = "LIST" if self.method == "GET" and len(parts) == 2 else self.method
        return f"{method} {parts[-1] if len(parts) > 3 else parts[1]}"


class Arm:
    """One subscription.

    `create_s` and `delete_s` are durations, `page` is the page size of lists. Tests read `calls`
    and `wrong`. With `machines`, a real machine is behind every virtual machine, and a create takes
    as long as its boot.
    """

    def __init__(self, machines: Machines | None = None) -> None:
        self.lock = threading.RLock()
        self.endpoint = ""
        self.fleet = Fleet(machines)
        self.world = World(SUBSCRIPTION, self.fleet, self.lock)
        self.catalog = Catalog()
        self.images = Images()
        self.faults = Faults()
        self.calls: list[Request] = []
        self.wrong: list[str] = []
        self.create_s = 0.0
        self.page = 50
        self.networks: set[str] | None = None  # regions with a network of ours; None: all
        self.identities: set[str] = set()  # resource ids
        self.gone_groups: set[str] = set()
        self.held = Held(lambda: self.world)
        self.account: Account | None = None  # of a subscription in which nothing is yet
        self.facts = Facts(SUBSCRIPTION)
        self.facts.networks = lambda region: self.networks is None or region in self.networks
        self.facts.families = tuple(kind.family for kind in self.catalog.kinds.values())

    # --- what a test does

    def machine(self, name: str) -> Machine:
        """Return a machine by name, in any group."""
        with self.lock:
            self.world.settle()
            return next(m for key, m in self.world.machines.items() if key.endswith(f"/{name}"))

    @property
    def delete_s(self) -> float:
        return self.world.delete_s

    @delete_s.setter
    def delete_s(self, seconds: float) -> None:
        self.world.delete_s = seconds

    def preempt(self, name: str, left_s: float = NOTICE_S) -> None:
        """Preempt a Spot machine; see `World.evict`."""
        self.world.evict(self.machine(name).row["id"], left_s)

    def counted(self) -> list[str]:
        """Return the calls so far, without token requests."""
        with self.lock:
            return [call.call for call in self.calls if "token" not in call.call]

    # --- answers

    def answer(self, request: Request, fault: str = "") -> Reply:
        """Answer a request."""
        with self.lock:
            self.world.settle()
            reply = _unseen(request) if fault == "invisible" else self._answer(request, fault)
            self._check(request, reply)
            return reply

    def _answer(self, request: Request, fault: str) -> Reply:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return _refusal(401, "InvalidAuthenticationToken", "The access token is invalid.")
        if not request.query.get("api-version"):
            return _refusal(400, "MissingApiVersionParameter", "api-version is required.")
        reported = self._told(request)
        if reported is not None:
            return reported
        parts = re.fullmatch(
            rf"/subscriptions/{SUBSCRIPTION}(?:/resourceGroups/([^/]+))?"
            r"/providers/([^/]+/[^/]+)(?:/(.+))?",
            request.path,
            re.IGNORECASE,
        )
        group, kind, name = (parts[1] or "", parts[2], parts[3] or "") if parts else ("", "", "")
        if kind == "Microsoft.Compute/locations":
            return self._of_location(request, name)
        if kind == "Microsoft.Network/virtualNetworks":
            return _missing(name)
        kind = _KINDS.get(kind.lower(), "")
        if not kind:
            return _refusal(404, "InvalidResourceType", f"Nothing is at {request.path}")
        if group in self.gone_groups:
            return _refusal(404, "ResourceGroupNotFound", f"Resource group '{group}' is not there.")
        return self._resource(request, group, kind, name, fault)

    def _of_location(self, request: Request, name: str) -> Reply:
        if "/placementScores/" in name:
            return self.catalog.generate(request.method, request.query, request.body)
        return self._operation(name)

    def _told(self, request: Request) -> Reply | None:
        """Answer for the subscription, its set-up, and Resource Graph."""
        if request.path == "/providers/Microsoft.ResourceGraph/resources":
            return self.catalog.graph(request.method, request.query, request.body)
        if self.account is not None:
            result = self.account.answer(request.method, request.path, request.body)
            if result is not None:
                self.wrong, self.account.wrong = [*self.wrong, *self.account.wrong], []
                return Reply(*result)
        fact = self.facts.answer(request.path) if request.method == "GET" else None
        self.wrong, self.facts.wrong = [*self.wrong, *self.facts.wrong], []
        return None if fact is None else Reply(200, fact)

    def _resource(self, request: Request, group: str, kind: str, name: str, fault: str) -> Reply:
        if not name:
            return self._list(request, group, kind)
        if kind == HELD:
            return self.held.answer(request, group, name)
        if kind == VM:
            return self._machine(request, group, name, fault)
        if request.method == "GET":
            row = self.world.others.get(self.world.name(group, kind, name).lower())
            return Reply(200, self._filled(row)) if row else _missing(name)
        if request.method == "PUT":
            return self._put_other(request, group, kind, name)
        return self._delete_other(group, kind, name)

    def _list(self, request: Request, group: str, kind: str) -> Reply:
        if kind == "Microsoft.Compute/skus":
            region = re.fullmatch("location eq '(.+)'", request.query.get("$filter", ""))
            return self._page(request, self.catalog.skus(region[1]) if region else [])
        if kind == VM and not group:
            if request.query.get("statusOnly") != "true":
                return _refusal(400, "NotModelled", "the stand-in has no such list")
            return self._page(request, [_status_of(m) for m in self.world.machines.values()])
        if "$expand" in request.query:
            return _refusal(400, "BadRequest", "$expand needs a $filter by scale set.")
        return self._page(request, [self._filled(row) for row in self.world.listed(group, kind)])

    def _filled(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return an availability set with its machines; anything else unchanged."""
        if row.get("type") != SET:
            return row
        rows = [machine.row for machine in self.world.machines.values()]
        own = [r for r in rows if r["properties"].get("availabilitySet", {}).get("id") == row["id"]]
        filled = {**row["properties"], "virtualMachines": [{"id": r["id"]} for r in own]}
        return {**row, "properties": filled}

    def _page(self, request: Request, rows: list[Any]) -> Reply:
        start = int(request.query.get("$skiptoken", "0"))
        body: dict[str, Any] = {"value": rows[start : start + self.page]}
        if start + self.page < len(rows):
            query = {**request.query, "$skiptoken": str(start + self.page)}
            text = "&".join(f"{key}={value}" for key, value in query.items())
            body["nextLink"] = f"{self.endpoint}{request.path}?{text}"
        return Reply(200, body)

    def _machine(self, request: Request, group: str, name: str, fault: str) -> Reply:
        if request.method == "POST":
            name, _, verb = name.partition("/")
            return (self._evict if verb == "simulateEviction" else self._diagnostics)(group, name)
        machine = self.world.machines.get(self.world.name(group, VM, name).lower())
        verbs: dict[str, Callable[[], Reply]] = {
            "GET": lambda: self._get(request, machine, name),
            "PUT": lambda: self._put(request, group, name, machine, fault),
            "PATCH": lambda: self._patch(request, machine, name),
            "DELETE": lambda: self._delete(machine, fault),
        }
        return verbs[request.method]()

    def _get(self, request: Request, machine: Machine | None, name: str) -> Reply:
        if machine is None:
            return _missing(name)
        row = machine.row
        if request.query.get("$expand") == "instanceView":
            row = {**row, "properties": {**row["properties"], "instanceView": machine.view()}}
        return Reply(200, row)

    def _put(
        self, request: Request, group: str, name: str, machine: Machine | None, fault: str
    ) -> Reply:
        if machine is not None:
            if request.headers.get("If-None-Match") != "*":
                return _refusal(409, "PropertyChangeNotAllowed", "It is there already.")
            return _refusal(412, "PreconditionFailed", "The resource exists, and must not.")
        body = request.body
        wrong = problems(COMPUTE, "VirtualMachine", body)
        wrong += [f"{key} is Azure's alone" for key in _READ_ONLY if key in body["properties"]]
        if wrong:
            self.wrong += wrong
            return _refusal(400, "InvalidRequestContent", "; ".join(wrong))
        refused = self._refused(body)
        if fault == "sync_husk":
            message = error("AllocationFailed", ALLOCATION)["error"]
            self.world.create(group, name, body, 0.0, message)
            return _refusal(409, "AllocationFailed", ALLOCATION)
        if refused is not None:
            return refused
        late = {"fails_later": 0.4, "fails": 0.0}.get(fault)
        message = error("AllocationFailed", ALLOCATION)["error"] if late is not None else None
        takes_s = self.create_s if late is None else late
        row = self.world.create(group, name, body, takes_s, message)
        operation = [*self.world.operations.values()][-1]
        return Reply(201, {**row}, self._where(body["location"], operation.ident))

    def _refused(self, body: Mapping[str, Any]) -> Reply | None:
        """Return the reason why Azure refuses to create the machine."""
        wrong = self._invalid(body)
        if wrong:
            return _refusal(400, "InvalidParameter", wrong)
        region, properties = body["location"], body["properties"]
        size, zone = properties["hardwareProfile"]["vmSize"], next(iter(body.get("zones", ())), "")
        full = self.held.refuse(body)
        if full:
            return _refusal(*full)
        image = properties["storageProfile"]["imageReference"]
        named = tuple(image.get(k) for k in ("publisher", "offer", "sku", "version"))
        if "id" not in image and named != IMAGE:
            return _refusal(404, "PlatformImageNotFound", f"{named} was not found.")
        missing = self._lacks(body, region)
        if missing:
            message = f"Resource {missing} referenced by resource was not found."
            return _refusal(400, "InvalidResourceReference", message)
        if properties["priority"] == "Spot":
            most = properties["billingProfile"]["maxPrice"]
            if 0 <= most < self.catalog.spot_usd(size, region):
                return _refusal(*REFUSALS["price"])
        if not self.catalog.take(size, zone):
            return _refusal(*REFUSALS["no_capacity"])
        return None

    def _invalid(self, body: Mapping[str, Any]) -> str:
        """Return what is invalid in a machine; "" when nothing is."""
        region, properties = body["location"], body["properties"]
        size, zone = properties["hardwareProfile"]["vmSize"], next(iter(body.get("zones", ())), "")
        kind = self.catalog.kinds.get(size)
        if kind is None or region not in kind.zones:
            return f"The value {size} provided for the VM size is not valid."
        if zone and zone not in kind.zones[region]:
            return f"Zone {zone} is not supported."
        host = properties["osProfile"]["computerName"]
        if not re.fullmatch(r"[A-Za-z0-9-]{1,64}", host):
            return f"{host} is not a name of a host."
        if "availabilitySet" in properties and (properties["priority"] == "Spot" or zone):
            return "A Spot machine, and one of a zone, is in no availability set."
        return ""

    def _lacks(self, body: Mapping[str, Any], region: str) -> str:
        """Return the missing network or identity that a body names."""
        profile = body["properties"]["networkProfile"]["networkInterfaceConfigurations"][0]
        subnet = profile["properties"]["ipConfigurations"][0]["properties"]["subnet"]["id"]
        reported = re.fullmatch(r".*/virtualNetworks/spotd-([a-z0-9]+)/subnets/nodes", subnet)
        if not reported or reported[1] != region:
            return subnet
        if self.networks is not None and region not in self.networks:
            return subnet
        of_gang = (body["properties"].get("availabilitySet") or {}).get("id", "")
        if of_gang and of_gang.lower() not in self.world.others:
            return str(of_gang)
        identities = (body.get("identity") or {}).get("userAssignedIdentities") or {}
        return next((identity for identity in identities if identity not in self.identities), "")

    def _patch(self, request: Request, machine: Machine | None, name: str) -> Reply:
        if machine is None:
            return _missing(name)
        self.wrong += problems(COMPUTE, "VirtualMachineUpdate", request.body)
        match = request.headers.get("If-Match")
        if match and match != machine.row["etag"]:
            return _refusal(412, "PreconditionFailed", "It has changed.")
        if machine.state() in ("Creating", "Deleting"):
            return _refusal(*REFUSALS["conflict"])
        machine.row["tags"] = dict(request.body["tags"])  # all of them, as Azure does
        machine.become(machine.state())
        return Reply(200, machine.row)

    def _delete(self, machine: Machine | None, fault: str) -> Reply:
        if machine is None:
            return Reply(204)
        if fault == "conflict":
            return _refusal(*REFUSALS["conflict"])
        if fault == "leftovers":
            self.world.remove(machine.row["id"], spare=True)
            return Reply(202)
        machine.become("Deleting")
        operation = self.world.begin(machine.row["id"], self.delete_s, ends=True)
        return Reply(202, None, self._where(machine.row["location"], operation.ident))

    def _evict(self, group: str, name: str) -> Reply:
        machine = self.world.machines.get(self.world.name(group, VM, name).lower())
        if machine is None:
            return _missing(name)
        if machine.row["properties"].get("priority") != "Spot":
            return _refusal(409, "OperationNotAllowed", "It is not a Spot machine.")
        if self.fleet.real:  # it may have to tell us something before it hears of this
            threading.Timer(0.0, self.world.evict, [machine.row["id"]]).start()
        else:
            self.world.evict(machine.row["id"])
        return Reply(204)

    def _diagnostics(self, group: str, name: str) -> Reply:
        resource_id = self.world.name(group, VM, name).lower()
        machine = self.world.machines.get(resource_id)
        received = machine.row["properties"].get("diagnosticsProfile", {}) if machine else {}
        if machine is None or not received.get("bootDiagnostics", {}).get("enabled"):
            return _missing(name)
        return Reply(200, {"serialConsoleLogBlobUri": f"{self.endpoint}/console{resource_id}"})

    def _put_other(self, request: Request, group: str, kind: str, name: str) -> Reply:
        self.wrong += problems(*MODELS[kind], request.body)
        if kind in KINDS:
            return Reply(*self.images.put(self.world, group, kind, name, request.body))
        resource_id = self.world.name(group, kind, name)
        row = {"id": resource_id, "name": name, "type": kind, **request.body}
        self.world.others[resource_id.lower()] = row
        return Reply(200, row)

    def _delete_other(self, group: str, kind: str, name: str) -> Reply:
        resource_id = self.world.name(group, kind, name).lower()
        row = self.world.others.get(resource_id)
        if row is None:
            return Reply(204)
        parts = {"virtualMachine", "ipConfiguration"} & {*row["properties"]}
        if row.get("managedBy") or parts or self._filled(row)["properties"].get("virtualMachines"):
            return _refusal(*IN_USE[kind])
        del self.world.others[resource_id]
        return Reply(200 if kind == SET else 202)

    def _operation(self, name: str) -> Reply:
        operation = self.world.operations.get(name.rpartition("/")[2])
        if operation is None:
            return _missing(name)
        if not operation.told:
            return Reply(200, {"status": "InProgress"})
        if operation.error:
            return Reply(200, {"status": "Failed", "error": operation.error})
        return Reply(200, {"status": "Succeeded"})

    def _where(self, region: str, operation: str) -> dict[str, str]:
        base = f"{self.endpoint}/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Compute"
        url = f"{base}/locations/{region}/operations/{operation}?api-version=2026-04-01"
        return {"Azure-AsyncOperation": url, "Location": f"{url}&monitor=true"}

    def _check(self, request: Request, reply: Reply) -> None:
        kind = next((item for item in MODELS if f"/{item}".lower() in request.path.lower()), "")
        if reply.status >= 300 or not kind or reply.body is None or request.method == "POST":
            return
        model = MODELS[kind]
        if kind == HELD and request.path.lower().endswith("/capacityreservations"):
            model = (COMPUTE, "CapacityReservation")
        rows = reply.body.get("value", [reply.body]) if isinstance(reply.body, dict) else []
        for row in rows:
            self.wrong += [f"{request.call}: {text}" for text in problems(*model, row)]


def _status_of(machine: Machine) -> dict[str, Any]:
    """Return a row of the run-time status list: only statuses, and the id in capitals."""
    row = machine.row
    head, _, name = row["id"].rpartition("/")
    group = re.sub(r"(?<=/resourceGroups/)[^/]+", lambda found: found[0].upper(), head)
    reported = {"vmId": row["properties"]["vmId"], "instanceView": machine.view()}
    resource_id = f"{group}/{name}"
    return {
        "id": resource_id,
        "name": row["name"],
        "location": row["location"],
        "properties": reported,
    }


def _refusal(status: int, code: str, words: str, **more: Any) -> Reply:
    return Reply(status, error(code, words, **more))


def _unseen(request: Request) -> Reply:
    """Azure's answer for a resource that exists but is not visible yet."""
    if request.method == "DELETE":
        return Reply(204)
    return Reply(200, {"value": []}) if request.call.startswith("LIST") else _missing("x")


def _missing(name: str) -> Reply:
    return _refusal(404, "ResourceNotFound", f"The resource '{name}' was not found.")
