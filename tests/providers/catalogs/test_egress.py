"""The cost of egress."""

from __future__ import annotations

from datetime import date

import pytest

from providers.catalogs.egress import PriceFileError, egress_prices, read_prices

GOOD = 'dated = 2026-11-21\nsource = "somebody"\n'


def test_the_file_that_comes_with_us() -> None:
    result = egress_prices()
    assert set(result) == {"aws", "azure", "gcp", "lyceum", "runpod"}
    for item in result.values():
        assert date.fromisoformat(item.dated) <= date(2026, 11, 24)
        assert item.source
    assert {cloud: one.first_microusd_per_gb for cloud, one in result.items()} == {
        "aws": 90_000,
        "azure": 87_500,
        "gcp": 120_000,
        "lyceum": 0,
        "runpod": 0,
    }
    assert {cloud for cloud, one in result.items() if one.free} == {"lyceum", "runpod"}
    assert result["aws"].between_zones_microusd_per_gb == 10_000
    assert result["gcp"].between_zones_microusd_per_gb is None


@pytest.mark.parametrize(
    ("cloud", "gb", "usd"),
    [
        ("aws", 0, 0.0),
        ("aws", 871, 78.39),  # the whole state of a 72B model
        ("aws", 10_240, 921.6),
        ("aws", 20_480, 921.6 + 870.4),
        ("aws", 200_000, 921.6 + 40_960 * 0.085 + 102_400 * 0.07 + 46_400 * 0.05),
        ("gcp", 2_048, 1_024 * 0.12 + 1_024 * 0.11),
        ("azure", 100, 8.75),
    ],
)
def test_what_an_amount_costs(cloud: str, gb: float, usd: float) -> None:
    assert egress_prices()[cloud].microusd(gb) == round(usd * 1e6)


def test_what_is_free_at_first_alone_is_not_free() -> None:
    result = read_prices(f"[x]\n{GOOD}tiers = [[100, 0.0], [inf, 0.01]]")
    assert (result["x"].free, result["x"].first_microusd_per_gb) == (False, 0)


def test_less_than_nothing_is_no_amount() -> None:
    with pytest.raises(ValueError, match="less than 0"):
        egress_prices()["aws"].microusd(-1)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[aws", "not TOML"),
        ("aws = 3", "aws: must be a table"),
        (f"[aws]\n{GOOD}tears = []", "aws.tears: unknown key"),
        ('[aws]\nsource = "x"\ntiers = [[inf, 1]]', "aws.dated: None is not a date"),
        (
            '[aws]\ndated = "soon"\nsource = "x"\ntiers = [[inf, 1]]',
            "aws.dated: 'soon' is not a date",
        ),
        ('[aws]\ndated = 2026-11-21\nsource = " "\ntiers = [[inf, 1]]', "aws.source"),
        (f"[aws]\n{GOOD}", "aws.tiers: must be a list"),
        (f"[aws]\n{GOOD}tiers = []", "aws.tiers: must be a list"),
        (f"[aws]\n{GOOD}tiers = [[1]]", "is no [up to GB, USD a GB]"),
        (f"[aws]\n{GOOD}tiers = [[10, 0.1]]", "must ascend, and end with inf"),
        (f"[aws]\n{GOOD}tiers = [[10, 0.1], [5, 0.1], [inf, 0.1]]", "must ascend"),
        (f"[aws]\n{GOOD}tiers = [[inf, -0.1]]", "-0.1 is not a price per GB"),
        (f"[aws]\n{GOOD}tiers = [[inf, true]]", "True is not a price per GB"),
        (f"[aws]\n{GOOD}tiers = [[inf, 90]]", "90 is not a price per GB"),
        (f"[aws]\n{GOOD}tiers = [[inf, 1]]\nbetween_zones_usd_per_gb = 'x'", "is not a price"),
    ],
)
def test_a_file_that_is_wrong_says_where(text: str, told: str) -> None:
    with pytest.raises(PriceFileError) as caught:
        read_prices(text)
    assert told in str(caught.value)
