"""Read scenarios from TOML files, reporting all errors at once.

For examples see examples/scenarios/.
"""

from __future__ import annotations

import tomllib
from decimal import Decimal
from pathlib import Path

from providers.base import CapacityType
from providers.local.scenario import (
    DEFAULT,
    FAULT_KINDS,
    MODES,
    OPERATIONS,
    PERSONALITIES,
    PREEMPT_KINDS,
    CapacityChange,
    Fault,
    MachineType,
    Preemption,
    PriceChange,
    Scenario,
    Zone,
)
from providers.local.scenario_fields import Row, Rows, ScenarioError


def load(path: Path) -> Scenario:
    """Read a scenario file. Raises ScenarioError with all errors in it."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError([f"{path}: cannot be read: {error}"]) from None
    return parse(text, str(path))


def parse(text: str, name: str = "scenario") -> Scenario:
    """Parse TOML. Without zones or types the default ones apply. Raises ScenarioError."""
    try:
        data = tomllib.loads(text, parse_float=Decimal)
    except (ValueError, ArithmeticError, RecursionError) as error:
        # Invalid TOML, nested too deeply, or a number out of range.
        raise ScenarioError([f"{name}: not TOML: {error}"]) from None
    errors: list[str] = []
    top = Row(data, name, errors)
    scenario = Scenario(
        zones=tuple(_zone(row) for row in Rows(top, "zone")) or DEFAULT.zones,
        types=tuple(_type(row) for row in Rows(top, "type")) or DEFAULT.types,
        prices=tuple(_price(row) for row in Rows(top, "price")),
        capacities=tuple(_capacity(row) for row in Rows(top, "capacity")),
        faults=tuple(parse_fault(row) for row in Rows(top, "fault")),
        preemptions=tuple(parse_preemption(row) for row in Rows(top, "preempt")),
        visibility_s=top.seconds("visibility_s", 0.0),
        aws_queue_delay_s=top.seconds("aws_queue_delay_s", 15.0),
        azure_first_call_delay_s=top.seconds("azure_first_call_delay_s", 0.0),
        silent_retention_s=top.seconds("silent_retention_s", 5.0),
    )
    top.check_unknown_keys()
    _check(scenario, name, errors)
    if errors:
        raise ScenarioError(errors)
    return scenario


def _zone(row: Row) -> Zone:
    zone = Zone(
        personality=row.one_of("personality", PERSONALITIES),
        region=row.text("region"),
        name=row.text("name"),
        spot_capacity=row.count("spot_capacity", 1000),
        on_demand_capacity=row.count("on_demand_capacity", 1000),
        price_factor=row.number("price_factor", Decimal(1)),
        boot_delay_s=row.seconds("boot_delay_s", 0.0),
    )
    row.check_unknown_keys()
    return zone


def _type(row: Row) -> MachineType:
    machine = MachineType(
        personality=row.one_of("personality", PERSONALITIES),
        name=row.text("name"),
        spot_microusd_per_h=row.usd("spot_usd_per_hour"),
        on_demand_microusd_per_h=row.usd("on_demand_usd_per_hour"),
        accelerator=row.text("accelerator", ""),
        accelerator_count=row.count("accelerator_count", 0),
        cpus=float(row.number("cpus", Decimal(1))),
        memory_gib=float(row.number("memory_gib", Decimal(1))),
    )
    row.check_unknown_keys()
    return machine


def _price(row: Row) -> PriceChange:
    change = PriceChange(
        at_s=row.seconds("at_s"),
        microusd_per_h=row.usd("usd_per_hour"),
        personality=row.one_of("personality", PERSONALITIES, ""),
        zone=row.text("zone", ""),
        instance_type=row.text("instance_type", ""),
        capacity_type=_capacity_type(row),
    )
    row.check_unknown_keys()
    return change


def _capacity(row: Row) -> CapacityChange:
    change = CapacityChange(
        at_s=row.seconds("at_s"),
        count=row.count("count"),
        personality=row.one_of("personality", PERSONALITIES, ""),
        zone=row.text("zone", ""),
        capacity_type=_capacity_type(row),
    )
    row.check_unknown_keys()
    return change


def _capacity_type(row: Row) -> CapacityType:
    return CapacityType(row.one_of("capacity_type", ("spot", "on_demand"), "spot"))


def parse_fault(row: Row) -> Fault:
    """Parse a fault of a scenario or of the control API."""
    fault = Fault(
        operation=row.one_of("operation", OPERATIONS),
        kind=row.one_of("kind", FAULT_KINDS),
        personality=row.one_of("personality", PERSONALITIES, ""),
        zone=row.text("zone", ""),
        count=row.count("count", 1),
        from_s=row.seconds("from_s", 0.0),
        until_s=row.seconds("until_s", 1e12),
        seconds=row.seconds("seconds", 1.0),
    )
    row.check_unknown_keys()
    return fault


def parse_preemption(row: Row) -> Preemption:
    """Parse a preemption rule of a scenario or of the control API."""
    kind = row.one_of("kind", PREEMPT_KINDS, "preempt")
    preemption = Preemption(
        kind=kind,
        mode=row.one_of("mode", MODES, "notice"),
        notice_s=row.seconds("notice_s", 0.0 if kind == "none" else 30.0),
        personality=row.one_of("personality", PERSONALITIES, ""),
        zone=row.text("zone", ""),
        instance=row.text("instance", ""),
        at_s=row.seconds("at_s") if row.has("at_s") else None,
        nth=row.count("nth", 0),
        after=row.one_of("after", ("launch", "exec"), "exec"),
        after_s=row.seconds("after_s", 0.0),
        thaw_after_s=row.seconds("thaw_after_s") if row.has("thaw_after_s") else None,
        zombie_s=row.seconds("zombie_s", 10.0),
    )
    row.check_unknown_keys()
    return preemption


def _check(scenario: Scenario, name: str, errors: list[str]) -> None:
    """Check consistency between rows."""
    names = [(zone.personality, zone.name) for zone in scenario.zones]
    duplicates = sorted({pair for pair in names if names.count(pair) > 1})
    errors += [f"{name}: zone {zone!r} of {cloud} is there twice" for cloud, zone in duplicates]
    known = {zone.name for zone in scenario.zones}
    used = {price.zone for price in scenario.prices}
    used |= {capacity.zone for capacity in scenario.capacities}
    used |= {fault.zone for fault in scenario.faults}
    used |= {rule.zone for rule in scenario.preemptions}
    for zone in sorted(used - known - {""}):
        zones = ", ".join(sorted(known))
        errors.append(f"{name}: there is no zone {zone!r}; the zones are {zones}")
    for index, rule in enumerate(scenario.preemptions):
        if (rule.at_s is None) == (rule.nth == 0):
            errors.append(
                f"{name}: preempt[{index}]: give either at_s, or nth (from 1) and after_s"
            )
    without_types = {zone.personality for zone in scenario.zones}
    without_types -= {machine.personality for machine in scenario.types}
    errors += [f"{name}: {cloud} has zones but no machine types" for cloud in sorted(without_types)]
