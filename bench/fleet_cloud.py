"""Three clouds that hand out simulated machines, behind the local cloud's own HTTP door."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from fleet_agents import Agents, Machine, now_us

from providers.local.blocking_http import BlockingHandler, BlockingServer, bind

CLOUDS = ("aws", "gcp", "azure")
REGIONS = 20  # of each cloud
ZONES = "ab"  # of each region
NOTICE_S = 120.0
_ASKED = ("token", "tags", "region", "zone", "instance_type", "capacity_type", "ssh_user")


def region(number: int) -> tuple[str, str]:
    """(cloud, region) of a number; numbers go round."""
    cloud = CLOUDS[number % len(CLOUDS)]
    return cloud, f"{cloud}-r{number // len(CLOUDS) % REGIONS:02d}"


def offers(cloud: str) -> list[dict[str, Any]]:
    """A spot and an on-demand offer of one kind of machine in every zone, each at its own price."""
    rows = []
    for at in range(REGIONS * len(ZONES)):
        where = f"{cloud}-r{at // len(ZONES):02d}"
        for kind, price in (("spot", 20_000_000 + 10_000 * at), ("on_demand", 80_000_000)):
            rows.append(
                {
                    "region": where,
                    "zone": where + ZONES[at % len(ZONES)],
                    "instance_type": "8xh100",
                    "capacity_type": kind,
                    "price_microusd_per_h": price,
                    "list_microusd_per_h": 80_000_000,
                    "accelerator": "H100",
                    "accelerator_count": 8,
                    "cpus": 192.0,
                    "memory_gib": 2048.0,
                    "cloud": cloud,
                    "local": True,
                }
            )
    return rows


class Clouds:
    """Launches, lists, ends and takes away. `open_port` makes a machine reachable at a port."""

    def __init__(self, agents: Agents, open_port: Callable[[Machine], int]) -> None:
        self._agents = agents
        self._open_port = open_port
        self._lock = threading.Lock()
        self._machines: dict[str, Machine] = {}  # by instance id
        self._by_token: dict[str, Machine] = {}

    def launch(self, cloud: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The same token again is the same machine."""
        with self._lock:
            machine = self._by_token.get(body["token"])
            if machine is None:
                instance_id = f"{cloud}-{len(self._by_token) + 1}"
                machine = self._make(instance_id, body)
                self._machines[instance_id] = self._by_token[body["token"]] = machine
            return {"instance_id": machine.row["instance_id"]}

    def _make(self, instance_id: str, body: Mapping[str, Any]) -> Machine:
        row = {name: body[name] for name in _ASKED} | {
            "instance_id": instance_id,
            "state": "running",
            "host": "127.0.0.1",
            "host_public_key": body["host_public_key"],
            "launched_at_us": now_us(),
            "error": "",
            "error_code": "",
        }
        machine = Machine(row, (body["ssh_public_key"], body["host_private_key"]))
        row["port"] = self._open_port(machine)
        return machine

    def terminate(self, instance_id: str) -> None:
        """The machine ends and is not listed any more."""
        machine = self._machines.get(instance_id)
        if machine is not None:
            self._agents.end(machine)

    def listing(self, cloud: str) -> list[dict[str, Any]]:
        """Every machine of a cloud that has not ended."""
        mine = [m for m in self._all() if m.row["instance_id"].startswith(f"{cloud}-")]
        return [machine.row for machine in mine if machine.up]

    def reclaim(self, number: int, within_s: float) -> list[dict[str, Any]]:
        """Notices for `number` machines that train, region by region, evenly spread in time."""
        training = [machine for machine in self._all() if machine.training]
        taken = sorted(training, key=lambda machine: str(machine.row["zone"]))[:number]
        told, began_s = [], time.monotonic()
        for at, machine in enumerate(taken):
            time.sleep(max(began_s + within_s * at / number - time.monotonic(), 0))
            said_us = self._agents.warn(machine, NOTICE_S)
            told.append({"job": machine.job_id, "said_us": said_us})
        return told

    def output(self, every_s: float) -> None:
        """From now on every machine that trains prints."""
        self._agents.print_every(every_s, [machine for machine in self._all() if machine.training])

    def facts(self) -> dict[str, int]:
        """How much was said so far, and how many machines train."""
        return {**self._agents.said, "training": sum(m.training for m in self._all())}

    def _all(self) -> list[Machine]:
        with self._lock:
            return list(self._machines.values())


class Door(BlockingServer):
    """`/v1/<cloud>/<verb>` as a local cloud has it, and `/control/<verb>` for the benchmark."""

    def __init__(self, clouds: Clouds) -> None:
        self.clouds = clouds
        self.offers = {cloud: {"offers": offers(cloud)} for cloud in CLOUDS}
        super().__init__(bind("127.0.0.1"), _Conversation)

    def answer(self, path: str, query: Mapping[str, str], body: Mapping[str, Any]) -> Any:
        """One call. Raises LookupError for what there is not."""
        match path.strip("/").split("/"):
            case ["v1", cloud, "offers"]:
                return self.offers[cloud]
            case ["v1", cloud, "instances"]:
                return {"instances": self.clouds.listing(cloud)}
            case ["v1", _, "notices"]:
                return {"notices": []}
            case ["v1", cloud, "launch"]:
                return self.clouds.launch(cloud, body)
            case ["v1", _, "terminate"]:
                self.clouds.terminate(body["instance_id"])
                return {}
            case ["control", "facts"]:
                return self.clouds.facts()
            case ["control", "output"]:
                self.clouds.output(float(query["every_s"]))
                return {}
            case ["control", "reclaim"]:
                number, within_s = int(query["number"]), float(query["within_s"])
                return {"told": self.clouds.reclaim(number, within_s)}
        raise LookupError(path)


class _Conversation(BlockingHandler):
    server: Door

    def _serve(self) -> None:
        split = urlsplit(self.path)
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.loads(raw) if raw else {}
        try:
            status, data = 200, self.server.answer(split.path, dict(parse_qsl(split.query)), body)
        except LookupError as error:
            status, data = 404, {"error": {"code": "not_found", "text": repr(error)}}
        headers = {"Content-Type": "application/json", "X-Visibility-S": "5.0"}
        self.send(status, headers, json.dumps(data).encode())

    do_GET = do_POST = _serve  # noqa: N815  the base class's names
