"""Scenarios from TOML files, with everything wrong in one reported at once, by key.

See examples/scenarios/ for what a file looks like.
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
    """Read a file. Raises ScenarioError with every mistake in it."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError([f"{path}: cannot be read: {error}"]) from None
    return parse(text, str(path))


def parse(text: str, name: str = "scenario") -> Scenario:
    """Read TOML; zones and types left out are the default ones. Raises ScenarioError."""
    try:
        data = tomllib.loads(text, parse_float=Decimal)
    except (ValueError, ArithmeticError, RecursionError) as error:
        # Not TOML, too deep, or a number beyond all measure.
        raise ScenarioError([f"{name}: not TOML: {error}"]) from None
    errors: list[str] = []
    top = Row(data, name, errors)
    scenario = Scenario(
        zones=tuple(_zone(row) for row in Rows(top, "zone")) or DEFAULT.zones,
        types=tuple(_type(row) for row in Rows(top, "type")) or DEFAULT.types,
        prices=tuple(_price(row) for row in Rows(top, "price")),
        capacities=tuple(_capacity(row) for row in Rows(top, "capacity")),
        faults=tuple(fault_from(row) for row in Rows(top, "fault")),
        preemptions=tuple(preemption_from(row) for row in Rows(top, "preempt")),
        visibility_s=top.seconds("visibility_s", 0.0),
        aws_queue_delay_s=top.seconds("aws_queue_delay_s", 15.0),
        azure_first_call_delay_s=top.seconds("azure_first_call_delay_s", 0.0),
        silent_retention_s=top.seconds("silent_retention_s", 5.0),
    )
    top.done()
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
    row.done()
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
    row.done()
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
    row.done()
    return change


def _capacity(row: Row) -> CapacityChange:
    change = CapacityChange(
        at_s=row.seconds("at_s"),
        count=row.count("count"),
        personality=row.one_of("personality", PERSONALITIES, ""),
        zone=row.text("zone", ""),
        capacity_type=_capacity_type(row),
    )
    row.done()
    return change


def _capacity_type(row: Row) -> CapacityType:
    return CapacityType(row.one_of("capacity_type", ("spot", "on_demand"), "spot"))


def fault_from(row: Row) -> Fault:
    """One fault, from a scenario or from the control API."""
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
    row.done()
    return fault


def preemption_from(row: Row) -> Preemption:
    """One preemption, from a scenario or from the control API."""
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
    row.done()
    return preemption


def _check(scenario: Scenario, name: str, errors: list[str]) -> None:
    """What single rows cannot know."""
    names = [(z.personality, z.name) for z in scenario.zones]
    doubles = sorted({pair for pair in names if names.count(pair) > 1})
    errors += [f"{name}: zone {zone!r} of {cloud} is there twice" for cloud, zone in doubles]
    known = {z.name for z in scenario.zones}
    named = {change.zone for change in scenario.prices} | {c.zone for c in scenario.capacities}
    named |= {fault.zone for fault in scenario.faults} | {p.zone for p in scenario.preemptions}
    for zone in sorted(named - known - {""}):
        have = ", ".join(sorted(known))
        errors.append(f"{name}: there is no zone {zone!r}; the zones are {have}")
    for index, row in enumerate(scenario.preemptions):
        if (row.at_s is None) == (row.nth == 0):
            errors.append(
                f"{name}: preempt[{index}]: give either at_s, or nth (from 1) and after_s"
            )
    bare = {z.personality for z in scenario.zones} - {t.personality for t in scenario.types}
    errors += [f"{name}: {cloud} has zones but no machine types" for cloud in sorted(bare)]
