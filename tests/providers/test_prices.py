"""The dated price files."""

from __future__ import annotations

from datetime import date

from providers.prices import price_file


def test_of_aws() -> None:
    found = price_file("aws")
    assert date.fromisoformat(found.dated) <= date(2026, 11, 22)
    assert found.source
    assert found.on_demand["p5.48xlarge"]["us-east-1"] == 55_040_000
    assert found.on_demand["p5.48xlarge"]["ap-northeast-1"] == 68_800_000
    for places in found.on_demand.values():
        assert all(isinstance(price, int) and price > 0 for price in places.values())


def test_it_is_read_once() -> None:
    assert price_file("aws") is price_file("aws")
