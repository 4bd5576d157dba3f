"""The cost of stored objects."""

from __future__ import annotations

from datetime import date

import pytest

from providers.catalogs.storage import (
    GB,
    PriceFileError,
    read_prices,
    storage_price_of,
    storage_prices,
)

GOOD = """dated = 2026-11-21
source = "somebody"
class = "plain"
region = "r"
tiers = [[inf, 0.02]]
usd_per_1000_writes = 0.005
usd_per_1000_reads = 0.0004
retrieval_usd_per_gb = 0
"""


def test_the_file_that_comes_with_us() -> None:
    result = storage_prices()
    assert set(result) == {"aws", "azure", "gcp"}
    for item in result.values():
        assert date.fromisoformat(item.dated) <= date(2026, 11, 23)
        assert item.source
        assert item.region
        assert (item.microusd_per_1000_writes, item.microusd_per_1000_reads) == (5000, 400)
        assert item.retrieval_microusd_per_gb == 0
    assert {cloud: one.tiers[0][1] for cloud, one in result.items()} == {
        "aws": 23_000,
        "azure": 18_400,
        "gcp": 20_000,
    }


@pytest.mark.parametrize(
    ("url", "gib", "usd"),
    [
        ("s3://b/p", 0, 0.0),
        ("s3://b/p", 1000, 23.0),
        ("s3://b", 60_000, 51_200 * 0.023 + 8_800 * 0.022),
        ("gs://b/p", 871, 17.42),  # the whole state of a 72B model
        ("az://account/c/p", 100, 1.84),
    ],
)
def test_what_lies_there_costs_by_the_month(url: str, gib: int, usd: float) -> None:
    result = storage_price_of(url)
    assert result
    assert result.microusd_per_month(gib * GB) == round(usd * 1e6)


def test_a_folder_and_a_store_that_nobody_knows_cost_nothing_that_is_known() -> None:
    assert storage_price_of("file:///var/lib") is None
    assert storage_price_of("swift://x") is None
    with pytest.raises(ValueError, match="less than 0"):
        storage_prices()["aws"].microusd_per_month(-1)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[aws", "not TOML"),
        ("aws = 3", "aws: must be a table"),
        (f"[aws]\n{GOOD}tears = 1", "aws.tears: unknown key"),
        ("[aws]\n" + GOOD.replace("dated = 2026-11-21", ""), "aws.dated: None is not a date"),
        ("[aws]\n" + GOOD.replace('"somebody"', '""'), "aws.source"),
        ("[aws]\n" + GOOD.replace('class = "plain"', ""), "aws.class: is missing"),
        ("[aws]\n" + GOOD.replace('"plain"', "3"), "aws.class: 3 is not a name"),
        ("[aws]\n" + GOOD.replace('"r"', '""'), "aws.region: '' is not a name"),
        ("[aws]\n" + GOOD.replace("[[inf, 0.02]]", "[]"), "aws.tiers: must be a list"),
        ("[aws]\n" + GOOD.replace("inf", "5"), "must ascend, and end with inf"),
        ("[aws]\n" + GOOD.replace("0.005", "-1"), "aws.usd_per_1000_writes: -1 is not a price"),
        ("[aws]\n" + GOOD.replace("0.0004", "true"), "aws.usd_per_1000_reads: True is not a price"),
        ("[aws]\n" + GOOD.replace("retrieval_usd_per_gb = 0\n", ""), "retrieval_usd_per_gb: is m"),
    ],
)
def test_a_file_that_is_wrong_says_where(text: str, told: str) -> None:
    with pytest.raises(PriceFileError) as caught:
        read_prices(text)
    assert told in str(caught.value)
