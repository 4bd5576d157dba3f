"""The dated price files."""

from __future__ import annotations

from datetime import date

from providers.catalogs.prices import price_file


def test_of_aws() -> None:
    result = price_file("aws")
    assert date.fromisoformat(result.dated) <= date(2026, 11, 22)
    assert result.source
    assert result.on_demand["p5.48xlarge"]["us-east-1"] == 55_040_000
    assert result.on_demand["p5.48xlarge"]["ap-northeast-1"] == 68_800_000
    for places in result.on_demand.values():
        assert all(isinstance(price, int) and price > 0 for price in places.values())


def test_of_google_s_spot_there_is_a_snapshot() -> None:
    result = price_file("gcp")
    assert (result.spot_dated, bool(result.spot_source)) == ("about spring 2026", True)
    assert {kind: len(places) for kind, places in result.spot.items()} == {
        "a3-highgpu-8g": 16,
        "a3-megagpu-8g": 8,
    }
    for places in result.spot.values():
        assert all(10_000_000 < price < 40_000_000 for price in places.values())
    assert result.on_demand["a3-highgpu-8g"] == {"us-central1": 87_830_000}
    assert (price_file("azure").spot, price_file("azure").spot_dated) == ({}, "")


def test_it_is_read_once() -> None:
    assert price_file("aws") is price_file("aws")
