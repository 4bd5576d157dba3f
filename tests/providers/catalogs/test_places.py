"""Countries of regions, and operators of clouds."""

from __future__ import annotations

from importlib.resources import files

import pytest

from providers.catalogs.places import PriceFileError, places, read_places

GOOD = 'dated = 2026-11-24\nsource = "somebody"\n'


def test_the_file_that_comes_with_us() -> None:
    result = places()
    assert result.operators == {"aws": "US", "azure": "US", "gcp": "US"}
    assert {key.partition("/")[0] for key in result.countries} == set(result.operators)
    iso = {*result.countries.values(), *result.operators.values()}
    assert all(len(country) == 2 and country.isupper() for country in iso)
    assert {group: len(members) for group, members in result.groups.items()} == {
        "EU": 27,
        "EEA": 30,
        "ADEQUATE": 44,
    }


@pytest.mark.req("DAT-03")
@pytest.mark.parametrize(
    ("region", "country"),
    [
        ("aws/eu-central-2", "CH"),
        ("gcp/europe-west6", "CH"),
        ("azure/switzerlandnorth", "CH"),
        ("aws/eu-west-2", "GB"),
        ("azure/norwayeast", "NO"),
        ("aws/eu-central-1", "DE"),
        ("gcp/europe-west4", "NL"),
        ("azure/swedencentral", "SE"),
    ],
)
def test_names_that_mislead(region: str, country: str) -> None:
    assert places().countries[region] == country


def test_every_region_that_amazon_names_is_known() -> None:
    """By the location in its display name; isolated partitions cannot be rented."""
    from botocore.session import get_session

    known = get_session().get_component("data_loader").load_data("endpoints")
    for part in known["partitions"]:
        if "iso" not in part["partition"]:
            for region in part["regions"]:
                assert f"aws/{region}" in places().countries


def test_a_group_a_country_and_neither() -> None:
    assert places().members("eea") == places().members("EU") | {"IS", "LI", "NO"}
    assert places().members("ch") == {"CH"}
    assert places().members("Europe") == set()
    assert places().members("1A") == set()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"[operators]\n{GOOD}[groups]\n{GOOD}[aws]\n{GOOD}DE='a'\nFR='b a'\n", "two countries"),
        (f"[operators]\n{GOOD}aws = 1\n[groups]\n{GOOD}", "operators.aws: 1 is not text"),
        (f"[operators]\n{GOOD}[groups]\nsource='x'\n", "groups.dated"),
        (f"[operators]\n{GOOD}", "groups.dated"),
    ],
)
def test_a_file_that_is_wrong(text: str, told: str) -> None:
    with pytest.raises(PriceFileError, match=told):
        read_places(text)


def test_the_file_has_a_day_and_a_source_for_everything() -> None:
    text = files("providers.catalogs").joinpath("places.toml").read_text()
    assert text.count("dated = 2026-") == text.count("source = ") == text.count("\n[")
