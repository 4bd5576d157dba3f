"""What objects cost that lie in a store."""

from __future__ import annotations

from datetime import date

import pytest

from providers.catalogs.storage import GB, PriceFileError, read_prices, storage_of, storage_prices

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
    found = storage_prices()
    assert set(found) == {"aws", "azure", "gcp"}
    for one in found.values():
        assert date.fromisoformat(one.dated) <= date(2026, 11, 23)
        assert one.source
        assert one.region
        assert (one.microusd_per_1000_writes, one.microusd_per_1000_reads) == (5000, 400)
        assert one.retrieval_microusd_per_gb == 0
    assert {cloud: one.tiers[0][1] for cloud, one in found.items()} == {
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
    found = storage_of(url)
    assert found
    assert found.microusd_per_month(gib * GB) == round(usd * 1e6)


def test_a_folder_and_a_store_that_nobody_knows_cost_nothing_that_is_known() -> None:
    assert storage_of("file:///var/lib") is None
    assert storage_of("swift://x") is None
    with pytest.raises(ValueError, match="less than nothing"):
        storage_prices()["aws"].microusd_per_month(-1)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[aws", "not TOML"),
        ("aws = 3", "aws: is no table"),
        (f"[aws]\n{GOOD}tears = 1", "aws.tears: unknown key"),
        ("[aws]\n" + GOOD.replace("dated = 2026-11-21", ""), "aws.dated: None is no day"),
        ("[aws]\n" + GOOD.replace('"somebody"', '""'), "aws.source"),
        ("[aws]\n" + GOOD.replace('class = "plain"', ""), "aws.class: is missing"),
        ("[aws]\n" + GOOD.replace('"plain"', "3"), "aws.class: 3 is no name"),
        ("[aws]\n" + GOOD.replace('"r"', '""'), "aws.region: '' is no name"),
        ("[aws]\n" + GOOD.replace("[[inf, 0.02]]", "[]"), "aws.tiers: must be a list"),
        ("[aws]\n" + GOOD.replace("inf", "5"), "must ascend, and end with inf"),
        ("[aws]\n" + GOOD.replace("0.005", "-1"), "aws.usd_per_1000_writes: -1 is no price"),
        ("[aws]\n" + GOOD.replace("0.0004", "true"), "aws.usd_per_1000_reads: True is no price"),
        ("[aws]\n" + GOOD.replace("retrieval_usd_per_gb = 0\n", ""), "retrieval_usd_per_gb: is m"),
    ],
)
def test_a_file_that_is_wrong_says_where(text: str, told: str) -> None:
    with pytest.raises(PriceFileError) as caught:
        read_prices(text)
    assert told in str(caught.value)
