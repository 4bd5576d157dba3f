"""A case's zones, as a simulated cloud sells them."""

from __future__ import annotations

from tests.sim.cloud import Zone
from tests.sim.replay.trace import Case


def zones_of(case: Case, cloud: str) -> list[Zone]:
    """Those of that cloud, at the prices of the case's first tick."""
    found = []
    for number, name in enumerate(case.zones):
        provider, region, *_ = case.key(number).split("/")
        if provider == cloud:
            price = round(case.price(number, 0) * 1e6)
            listed = round(case.on_demand[number] * 1e6)
            found.append(Zone(provider, region, name, price, 0, True, list_microusd_per_h=listed))
    return found
