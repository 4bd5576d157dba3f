"""What is on sale now, for how much, and what goes wrong with the next call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from providers.base import CapacityType, Offer
from providers.local.scenario import (
    CapacityChange,
    Fault,
    MachineType,
    PriceChange,
    Scenario,
    Zone,
)

_SOLD = (CapacityType.SPOT, CapacityType.ON_DEMAND)


@dataclass
class _Armed:
    fault: Fault
    left: int  # how often it still fires; -1 for ever


class Market:
    """Prices and capacities as functions of the time since the start, and faults that wear off.

    `elapsed_s` says how long the server has been running. Safe to call from several threads.
    """

    def __init__(self, scenario: Scenario, elapsed_s: Callable[[], float]) -> None:
        self.scenario = scenario
        self._elapsed_s = elapsed_s
        self._lock = threading.Lock()
        self._prices = sorted(scenario.prices, key=lambda change: change.at_s)
        self._capacities = sorted(scenario.capacities, key=lambda change: change.at_s)
        self._faults = [_Armed(fault, fault.count or -1) for fault in scenario.faults]

    def zone(self, personality: str, region: str, name: str) -> Zone | None:
        """The zone of that name, or None."""
        for zone in self.scenario.zones:
            if (zone.personality, zone.region, zone.name) == (personality, region, name):
                return zone
        return None

    def machine_type(self, personality: str, name: str) -> MachineType | None:
        """The machine type of that name, or None."""
        for machine in self.scenario.types:
            if (machine.personality, machine.name) == (personality, name):
                return machine
        return None

    def price_microusd_per_h(self, zone: Zone, kind: MachineType, sold: CapacityType) -> int:
        """What one machine costs there now."""
        base = kind.spot_microusd_per_h
        if sold is CapacityType.ON_DEMAND:
            base = kind.on_demand_microusd_per_h
        price = int(base * zone.price_factor)
        now_s = self._elapsed_s()
        with self._lock:
            for change in self._prices:
                if change.at_s > now_s:
                    break
                if (
                    change.personality in ("", zone.personality)
                    and change.zone in ("", zone.name)
                    and change.instance_type in ("", kind.name)
                    and change.capacity_type is sold
                ):
                    price = change.microusd_per_h
        return price

    def capacity(self, zone: Zone, sold: CapacityType) -> int:
        """How many machines fit into the zone now."""
        count = zone.spot_capacity if sold is CapacityType.SPOT else zone.on_demand_capacity
        now_s = self._elapsed_s()
        with self._lock:
            for change in self._capacities:
                if change.at_s > now_s:
                    break
                if (
                    change.personality in ("", zone.personality)
                    and change.zone in ("", zone.name)
                    and change.capacity_type is sold
                ):
                    count = change.count
        return count

    def set_price(self, change: PriceChange) -> None:
        """A price change from now on, whatever its `at_s` says."""
        self._insert(self._prices, change)

    def set_capacity(self, change: CapacityChange) -> None:
        """A capacity change from now on."""
        self._insert(self._capacities, change)

    def arm(self, fault: Fault) -> None:
        """Let something go wrong; its times count from the start of the server."""
        with self._lock:
            self._faults.append(_Armed(fault, fault.count or -1))

    def disarm(self) -> None:
        """No more faults."""
        with self._lock:
            self._faults.clear()

    def take_faults(self, operation: str, personality: str, zone: str = "") -> list[Fault]:
        """The faults that hit this call; each that counts has one less to go."""
        now_s = self._elapsed_s()
        with self._lock:
            hit = [
                armed
                for armed in self._faults
                if armed.left
                and armed.fault.operation == operation
                and armed.fault.personality in ("", personality)
                and armed.fault.zone in ("", zone)
                and armed.fault.from_s <= now_s < armed.fault.until_s
            ]
            for armed in hit:
                armed.left = max(-1, armed.left - 1) if armed.left > 0 else -1
            return [armed.fault for armed in hit]

    def offers(self, personality: str) -> list[Offer]:
        """Everything this cloud sells, sold out or not: no cloud says that beforehand."""
        return [
            self._offer(zone, kind, sold)
            for zone in self.scenario.zones
            for kind in self.scenario.types
            for sold in _SOLD
            if zone.personality == kind.personality == personality
        ]

    def _offer(self, zone: Zone, kind: MachineType, sold: CapacityType) -> Offer:
        return Offer(
            provider="",  # the customer's own name for us
            region=zone.region,
            zone=zone.name,
            instance_type=kind.name,
            capacity_type=sold,
            price_microusd_per_h=self.price_microusd_per_h(zone, kind, sold),
            list_microusd_per_h=self.price_microusd_per_h(zone, kind, CapacityType.ON_DEMAND),
            accelerator=kind.accelerator,
            accelerator_count=kind.accelerator_count,
            cpus=kind.cpus,
            memory_gib=kind.memory_gib,
            cloud=zone.personality,
            local=True,
        )

    def _insert(
        self, rows: list[PriceChange] | list[CapacityChange], change: PriceChange | CapacityChange
    ) -> None:
        with self._lock:
            rows.append(change)  # type: ignore[arg-type]  # callers pass the matching pair
            rows.sort(key=lambda row: row.at_s)
