"""Places that are out of the question, whatever they cost."""

from __future__ import annotations

from typing import Any

import pytest

from spotd.decide.overdue import advise
from spotd.decide.placement import RESIDENCE, rank
from spotd.decide.residence import out_of_place
from spotd.decide.wayout import by_reason
from spotd.model import Market
from spotd.wishes import Wishes
from tests.spotd.decide.build import NOW, market, offer, spec

ZURICH, FRANKFURT = "eu-central-2", "eu-central-1"


def world(**fields: Any) -> Market:
    offers = tuple(
        offer(f"{region}a", price, provider="aws", cloud="aws")
        for region, price in ((ZURICH, 5.0), (FRANKFURT, 9.0), ("us-east-1", 3.0), ("moon-1", 1.0))
    )
    countries = {f"aws/{ZURICH}": "CH", f"aws/{FRANKFURT}": "DE", "aws/us-east-1": "US"}
    return market(offers, countries=countries, operators={"aws": "US"}, **fields)


@pytest.mark.req("DAT-03")
@pytest.mark.parametrize(
    ("residency", "free"),
    [
        (("DE", "FR"), [FRANKFURT]),
        (("CH", "DE"), [ZURICH, FRANKFURT]),
        ((), ["moon-1", "us-east-1", ZURICH, FRANKFURT]),
        (("GB",), []),
    ],
)
def test_residency_is_where_a_machine_stands(residency: tuple[str, ...], free: list[str]) -> None:
    rows = rank(spec(wishes=Wishes(residency=residency)), world(), NOW)
    assert [row.offer.region for row in rows if not row.excluded] == free
    out = {row.offer.region: row for row in rows if row.excluded}
    assert {row.code for row in out.values()} <= {RESIDENCE}
    if residency == ("DE", "FR"):
        assert out[ZURICH].excluded == "it stands in CH, outside its residency"
        assert out["moon-1"].excluded.startswith("nobody knows in which country moon-1 stands")
        assert out[ZURICH].until_us == 0


@pytest.mark.req("DAT-04")
def test_a_region_in_the_eu_is_run_by_an_american_company_all_the_same() -> None:
    row = rank(spec(wishes=Wishes(residency=("DE",), not_operated_from=("US",))), world(), NOW)
    told = {one.offer.region: one.excluded for one in row}
    assert told[FRANKFURT] == "who runs it is at home in US (not_operated_from)"


def test_who_runs_a_cloud_and_is_not_known_may_not() -> None:
    wishes = Wishes(not_operated_from=("US",))
    other = offer("zz-1a", provider="zz", cloud="zz")
    assert "nobody knows where who runs zz" in out_of_place(spec(wishes=wishes), other, world())
    known = market((other,), operators={"zz": "DE"})
    assert out_of_place(spec(wishes=wishes), other, known) == ""


def test_why_a_job_waits_names_it() -> None:
    rows = rank(spec(wishes=Wishes(residency=("GB",))), world(disabled={"aws": "off"}), NOW)
    assert "allow other places (spotd.residency, not_operated_from)" in advise(rows)
    mixed = [*rows, *rank(spec(), world(disabled={"aws": "off"}), NOW)]
    assert "4 where the job may not run" in by_reason(mixed)
