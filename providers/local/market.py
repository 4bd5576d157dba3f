"""Current offers, prices and capacity of the local cloud, and the faults of its API calls."""

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

_CAPACITY_TYPES = (CapacityType.SPOT, CapacityType.ON_DEMAND)


@dataclass
class _ActiveFault:
    fault: Fault
    remaining: int  # how many more times it fires; -1 without limit


class Market:
    """Prices and capacities as functions of the time since the start, and faults that expire.

    `elapsed_s` returns the seconds since the server's start. Thread-safe.
    """

    def __init__(self, scenario: Scenario, elapsed_s: Callable[[], float]) -> None:
        self.scenario = scenario
        self._elapsed_s = elapsed_s
        self._lock = threading.Lock()
        self._prices = sorted(scenario.prices, key=lambda change: change.at_s)
        self._capacities = sorted(scenario.capacities, key=lambda change: change.at_s)
        self._faults = [_ActiveFault(fault, fault.count or -1) for fault in scenario.faults]

    def zone(self, personality: str, region: str, name: str) -> Zone | None:
        for zone in self.scenario.zones:
            if (zone.personality, zone.region, zone.name) == (personality, region, name):
                return zone
        return None

    def machine_type(self, personality: str, name: str) -> MachineType | None:
        for machine in self.scenario.types:
            if (machine.personality, machine.name) == (personality, name):
                return machine
        return None

    def price_microusd_per_h(
        self, zone: Zone, machine_type: MachineType, capacity_type: CapacityType
    ) -> int:
        """The current price of one machine in the zone."""
        base = machine_type.spot_microusd_per_h
        if capacity_type is CapacityType.ON_DEMAND:
            base = machine_type.on_demand_microusd_per_h
        price = int(base * zone.price_factor)
        now_s = self._elapsed_s()
        with self._lock:
            for change in self._prices:
                if change.at_s > now_s:
                    break
                if (
                    change.personality in ("", zone.personality)
                    and change.zone in ("", zone.name)
                    and change.instance_type in ("", machine_type.name)
                    and change.capacity_type is capacity_type
                ):
                    price = change.microusd_per_h
        return price

    def capacity(self, zone: Zone, capacity_type: CapacityType) -> int:
        """The current number of machines that fit into the zone."""
        count = (
            zone.spot_capacity if capacity_type is CapacityType.SPOT else zone.on_demand_capacity
        )
        now_s = self._elapsed_s()
        with self._lock:
            for change in self._capacities:
                if change.at_s > now_s:
                    break
                if (
                    change.personality in ("", zone.personality)
                    and change.zone in ("", zone.name)
                    and change.capacity_type is capacity_type
                ):
                    count = change.count
        return count

    def set_price(self, change: PriceChange) -> None:
        """Add a price change."""
        self._insert(self._prices, change)

    def set_capacity(self, change: CapacityChange) -> None:
        """Add a capacity change."""
        self._insert(self._capacities, change)

    def add_fault(self, fault: Fault) -> None:
        """Add a fault. Its times count from the start of the server."""
        with self._lock:
            self._faults.append(_ActiveFault(fault, fault.count or -1))

    def clear_faults(self) -> None:
        """Remove all faults."""
        with self._lock:
            self._faults.clear()

    def take_faults(self, operation: str, personality: str, zone: str = "") -> list[Fault]:
        """The faults that hit this call. Counted faults have one use less afterwards."""
        now_s = self._elapsed_s()
        with self._lock:
            hit = [
                active
                for active in self._faults
                if active.remaining
                and active.fault.operation == operation
                and active.fault.personality in ("", personality)
                and active.fault.zone in ("", zone)
                and active.fault.from_s <= now_s < active.fault.until_s
            ]
            for active in hit:
                active.remaining = max(-1, active.remaining - 1) if active.remaining > 0 else -1
            return [active.fault for active in hit]

    def offers(self, personality: str) -> list[Offer]:
        """All offers, even without free capacity: no cloud announces that before a launch."""
        return [
            self._offer(zone, machine_type, capacity_type)
            for zone in self.scenario.zones
            for machine_type in self.scenario.types
            for capacity_type in _CAPACITY_TYPES
            if zone.personality == machine_type.personality == personality
        ]

    def _offer(self, zone: Zone, machine_type: MachineType, capacity_type: CapacityType) -> Offer:
        return Offer(
            provider="",  # filled in by the client
            region=zone.region,
            zone=zone.name,
            instance_type=machine_type.name,
            capacity_type=capacity_type,
            price_microusd_per_h=self.price_microusd_per_h(zone, machine_type, capacity_type),
            list_microusd_per_h=self.price_microusd_per_h(
                zone, machine_type, CapacityType.ON_DEMAND
            ),
            accelerator=machine_type.accelerator,
            accelerator_count=machine_type.accelerator_count,
            cpus=machine_type.cpus,
            memory_gib=machine_type.memory_gib,
            cloud=zone.personality,
            local=True,
        )

    def _insert(
        self, rows: list[PriceChange] | list[CapacityChange], change: PriceChange | CapacityChange
    ) -> None:
        with self._lock:
            rows.append(change)  # type: ignore[arg-type]  # callers pass the matching pair
            rows.sort(key=lambda row: row.at_s)
