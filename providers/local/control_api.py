"""The owner's API of the local cloud: prices, capacity, faults, preemptions, usage."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping

from providers.base import CapacityType
from providers.local.api_errors import Refusal
from providers.local.cloud_state import CloudState
from providers.local.metadata import FAULTS
from providers.local.preemption import Preemptor
from providers.local.scenario import PERSONALITIES, CapacityChange, PriceChange
from providers.local.scenario_fields import Row, ScenarioError
from providers.local.scenario_file import parse_fault, parse_preemption


class ControlApi:
    """Handles `/control/<verb>`. Raises Refusal or ScenarioError before changing anything."""

    def __init__(self, cloud: CloudState, preemptor: Preemptor) -> None:
        self._cloud = cloud
        self._preemptor = preemptor

    def answer(self, method: str, verb: str, body: Mapping[str, object]) -> object:
        """Handle one request."""
        errors: list[str] = []
        row = Row(body, verb, errors)
        match method, verb:
            case "GET", "meter":
                return {"meter": self._cloud.meter()}
            case "GET", "state":
                return self._state()
            case "POST", "preempt":
                return self._preempt(row)
            case "POST", "withdraw":
                preemption = self._preemptor.withdraw(row.text("notice_id"))
                return preemption.to_data()
            case "POST", "fault":
                fault = parse_fault(row)
                _raise_if_any(errors)
                self._cloud.market.add_fault(fault)
            case "POST", "shutdown":
                os.kill(os.getpid(), signal.SIGTERM)
            case "POST", "clear_faults":
                self._cloud.market.clear_faults()
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
        cloud = self._cloud
        with cloud.lock:
            machines = [machine.to_data() for machine in cloud.machines.values()]
            notices = [preemption.to_data() for preemption in self._preemptor.preemptions]
        return {
            "local": True,
            "elapsed_s": cloud.elapsed_s(),
            "now_us": time.time_ns() // 1000,
            "instances": machines,
            "notices": notices,
        }

    def _preempt(self, row: Row) -> dict[str, object]:
        rule = parse_preemption(row)
        if not (rule.instance or rule.zone or rule.personality):
            row.errors.append("preempt: name an instance, a zone or a personality")
        if rule.at_s is not None or rule.nth:
            row.errors.append("preempt: at_s and nth are for scenario files; this happens now")
        _raise_if_any(row.errors)
        return {"notices": [preemption.to_data() for preemption in self._preemptor.preempt(rule)]}

    def _price(self, row: Row) -> None:
        change = PriceChange(
            at_s=self._cloud.elapsed_s(),
            microusd_per_h=row.usd("usd_per_hour"),
            personality=row.one_of("personality", PERSONALITIES, ""),
            zone=row.text("zone", ""),
            instance_type=row.text("instance_type", ""),
            capacity_type=CapacityType(row.one_of("capacity_type", ("spot", "on_demand"), "spot")),
        )
        row.check_unknown_keys()
        _raise_if_any(row.errors)
        self._cloud.market.set_price(change)

    def _capacity(self, row: Row) -> None:
        change = CapacityChange(
            at_s=self._cloud.elapsed_s(),
            count=row.count("count"),
            personality=row.one_of("personality", PERSONALITIES, ""),
            zone=row.text("zone", ""),
            capacity_type=CapacityType(row.one_of("capacity_type", ("spot", "on_demand"), "spot")),
        )
        row.check_unknown_keys()
        _raise_if_any(row.errors)
        self._cloud.market.set_capacity(change)

    def _metadata(self, row: Row) -> None:
        ident = row.text("instance")
        fault = {"kind": row.one_of("kind", FAULTS), "seconds": row.seconds("seconds", 0.0)}
        row.check_unknown_keys()
        _raise_if_any(row.errors)
        with self._cloud.lock:
            machine = self._cloud.machines.get(ident)
        if machine is None or machine.process is None or not machine.alive:
            raise Refusal("not_found", f"no running machine {ident!r}")
        machine.process.request({"fault": fault}, "faulted")


def _raise_if_any(errors: list[str]) -> None:
    if errors:
        raise ScenarioError(errors)
