"""GPU prices claimed by guides, and the discounts computed from them."""

from __future__ import annotations

from datetime import date

import pytest

from providers.catalogs.guides import (
    NO_SPOT,
    PriceClaim,
    PriceFileError,
    claims,
    largest_discounts,
    read_claims,
)

GOOD = '[a]\ndated = 2026-01-01\nsource = "somebody"\n'
GUIDE = [one for one in claims() if one.source.startswith("a guide to spot")]


@pytest.mark.req("PLC-10")
def test_the_table_of_the_guide() -> None:
    """Its seven rows, in its order, and the discounts of their prices."""
    reported = [
        (item.accelerator, item.on_demand_usd, item.spot_usd, item.seller) for item in GUIDE
    ]
    assert reported == [
        ("H100", 5.50, 3.80, "lambda"),
        ("H100", 2.75, 1.89, "vast"),
        ("A100-80GB", 3.40, 2.40, "lambda"),
        ("A100-80GB", 1.89, 1.25, "vast"),
        ("RTX4090", 1.79, 1.19, "lambda"),
        ("RTX4090", 0.69, 0.49, "runpod"),
        ("RTX4090", 0.50, 0.35, "vast"),
    ]
    assert [round(item.discount * 100) for item in GUIDE] == [31, 31, 29, 34, 34, 29, 30]
    assert {item.seller: item.note for item in GUIDE} == {
        "lambda": NO_SPOT,
        "vast": "",
        "runpod": "",
    }
    assert NO_SPOT == "unverified: provider sells no spot"


@pytest.mark.req("PLC-11")
def test_the_case_study_and_the_list_that_came_after_it() -> None:
    old, new = (claim for claim in claims() if claim.seller == "spheron")
    assert (old.spot_usd, old.on_demand_usd) == (1.49, 2.00)
    assert round(old.discount * 100, 1) == 25.5
    assert old.note == "superseded: $2.91 of $5.07 since 2026-06-01"
    assert (new.spot_usd, new.on_demand_usd, new.note) == (2.91, 5.07, "")
    assert largest_discounts([old, new])["H100"] is new


@pytest.mark.req("PLC-12")
def test_who_has_the_deepest_discount_is_computed() -> None:
    """Vast has it for two GPUs in the guide's own table, and not for the third."""
    result = {
        gpu: (one.seller, round(one.discount * 100))
        for gpu, one in largest_discounts(GUIDE).items()
    }
    assert result == {"H100": ("vast", 31), "A100-80GB": ("vast", 34), "RTX4090": ("lambda", 34)}
    vast = next(item for item in GUIDE if (item.seller, item.accelerator) == ("vast", "RTX4090"))
    assert round(vast.discount * 100) == 30
    sold = largest_discounts(item for item in GUIDE if item.note != NO_SPOT)
    assert sold["RTX4090"] is vast, "of those who sell spot at all"


def test_each_says_when_and_where_from() -> None:
    for claim in claims():
        assert date.fromisoformat(claim.dated) <= date(2026, 11, 25)
        assert claim.source


def test_a_newer_row_supersedes_those_of_its_seller_and_gpu_alone() -> None:
    rows = 'prices = [["x", "H100", 2, 1], ["y", "H100", 2, 1], ["x", "A100", 2, 1]]\n'
    text = GOOD + rows + GOOD.replace("[a]", "[b]").replace("01-01", "02-01")
    result = read_claims(text + 'prices = [["x", "H100", 4, 3]]')
    assert [bool(item.note) for item in result] == [True, False, False, False]
    assert result[0] == PriceClaim("x", "H100", 2, 1, "2026-01-01", "somebody", result[0].note)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[a", "not TOML"),
        (GOOD, "a.prices: must be a list"),
        (f"{GOOD}prices = []", "a.prices: must be a list"),
        (f"{GOOD}cheap = 1", "a.cheap: unknown key"),
        (f'{GOOD}prices = [["x", "H100", 2]]', "is no [seller, GPU, on demand, spot]"),
        (f'{GOOD}prices = [["x", 100, 2, 1]]', "is no [seller"),
        (f'{GOOD}prices = [["x", "H100", 1, 2]]', "is no [seller"),
        (f'{GOOD}prices = [["x", "H100", 1, 0]]', "is no [seller"),
        (f'{GOOD}prices = [["x", "H100", 1, true]]', "is no [seller"),
        (GOOD.replace("[a]", "[no-spot]"), "no-spot.sellers: must be a list of names"),
        (GOOD.replace("[a]", "[no-spot]") + "sellers = [3]", "must be a list of names"),
    ],
)
def test_a_file_that_is_wrong_says_where(text: str, told: str) -> None:
    with pytest.raises(PriceFileError) as caught:
        read_claims(text)
    assert told in str(caught.value)
