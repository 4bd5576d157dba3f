"""What the owner of the cloud can do to it: prices, capacity, faults, preemptions, the meter."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping

from providers.base import CapacityType
from providers.local.api_errors import Refusal
from providers.local.cloud_state import CloudState
from providers.local.metadata import FAULTS
from providers.local.preemption import Taker
from providers.local.scenario import PERSONALITIES, CapacityChange, PriceChange
from providers.local.scenario_fields import Row, ScenarioError
from providers.local.scenario_file import fault_from, preemption_from


class ControlApi:
    """Calls of `/control/<verb>`. Raises Refusal or ScenarioError, having done nothing."""

    def __init__(self, world: CloudState, taker: Taker) -> None:
        self._world = world
        self._taker = taker

    def answer(self, method: str, verb: str, body: Mapping[str, object]) -> object:
        """One call."""
        errors: list[str] = []
        row = Row(body, verb, errors)
        match method, verb:
            case "GET", "meter":
                return {"meter": self._world.meter()}
            case "GET", "state":
                return self._state()
            case "POST", "preempt":
                return self._preempt(row)
            case "POST", "withdraw":
                taking = self._taker.withdraw(row.text("notice_id"))
                return taking.to_data()
            case "POST", "fault":
                fault = fault_from(row)
                _refuse(errors)
                self._world.market.arm(fault)
            case "POST", "shutdown":
                os.kill(os.getpid(), signal.SIGTERM)
            case "POST", "clear_faults":
                self._world.market.disarm()
            case "POST", "price":
                self._price(row)
            case "POST", "capacity":
                self._capacity(row)
            case "POST", "metadata":
                self._metadata(row)
            case _:
                raise Refusal("not_found", f"no such call: {method} {verb}")
        return {}

    def _state(self) -> dict[str, object]:
        world = self._world
        with world.lock:
            machines = [machine.to_data() for machine in world.machines.values()]
            notices = [taking.to_data() for taking in self._taker.takings]
        return {
            "local": True,
            "elapsed_s": world.elapsed_s(),
            "now_us": time.time_ns() // 1000,
            "instances": machines,
            "notices": notices,
        }

    def _preempt(self, row: Row) -> dict[str, object]:
        rule = preemption_from(row)
        if not (rule.instance or rule.zone or rule.personality):
            row.errors.append("preempt: name an instance, a zone or a personality")
        if rule.at_s is not None or rule.nth:
            row.errors.append("preempt: at_s and nth are for scenario files; this happens now")
        _refuse(row.errors)
        return {"notices": [taking.to_data() for taking in self._taker.take(rule)]}

    def _price(self, row: Row) -> None:
        change = PriceChange(
            at_s=self._world.elapsed_s(),
            microusd_per_h=row.usd("usd_per_hour"),
            personality=row.one_of("personality", PERSONALITIES, ""),
            zone=row.text("zone", ""),
            instance_type=row.text("instance_type", ""),
            capacity_type=CapacityType(row.one_of("capacity_type", ("spot", "on_demand"), "spot")),
        )
        row.done()
        _refuse(row.errors)
        self._world.market.set_price(change)

    def _capacity(self, row: Row) -> None:
        change = CapacityChange(
            at_s=self._world.elapsed_s(),
            count=row.count("count"),
            personality=row.one_of("personality", PERSONALITIES, ""),
            zone=row.text("zone", ""),
            capacity_type=CapacityType(row.one_of("capacity_type", ("spot", "on_demand"), "spot")),
        )
        row.done()
        _refuse(row.errors)
        self._world.market.set_capacity(change)

    def _metadata(self, row: Row) -> None:
        ident = row.text("instance")
        fault = {"kind": row.one_of("kind", FAULTS), "seconds": row.seconds("seconds", 0.0)}
        row.done()
        _refuse(row.errors)
        with self._world.lock:
            machine = self._world.machines.get(ident)
        if machine is None or machine.body is None or not machine.alive:
            raise Refusal("not_found", f"no running machine {ident!r}")
        machine.body.ask({"fault": fault}, "faulted")


def _refuse(errors: list[str]) -> None:
    if errors:
        raise ScenarioError(errors)
