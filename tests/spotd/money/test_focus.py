"""Rows of FOCUS: their sums are the ledger's, and they keep the rules of the columns."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal

import pytest

from spotd.money.focus import COLUMNS, Row, metadata, month_of, months, rows_of
from spotd.money.focus_rules import problems
from spotd.money.report import Item, Kind, report_of
from tests.spotd.money.build import H, account, machine, steps, stretch

NOVEMBER = 1_793_491_200_000_000  # 2026-11-01
SPOT = {
    "what": "p5.48xlarge spot",
    "provider": "aws",
    "cloud": "aws",
    "region": "us-east-1",
    "zone": "use1-az2",
    "type": "p5.48xlarge",
    "capacity": "spot",
    "accelerator": "H100",
    "instance_id": "i-1",
    "interrupted": "true",
}
STORED = Item(Kind.STORAGE, "storage", "3 checkpoints", 1 / 3, "GB-Months", 7_667, cloud="aws")


def rows(**fields: object) -> list[Row]:
    base = NOVEMBER // H
    item = machine(stretch(base, base + 1.3333, 3_333_333), generation=2, details=SPOT)
    made = account(item, **fields)
    return rows_of(made, "d0", NOVEMBER, NOVEMBER + 3 * H)


def test_a_spot_machine() -> None:
    base = NOVEMBER // H
    row = rows(steps=(steps(2, (1, 10), (base + 0.3333, base + 1.3333), 1.0),))[0]
    expected = {
        "ChargeCategory": "Usage",
        "PricingCategory": "Dynamic",
        "ServiceCategory": "Compute",
        "PricingUnit": "Hours",
        "ConsumedUnit": "GPU-Hours",
        "PricingQuantity": "1.3333",
        "ConsumedQuantity": "10.6664",
        "BilledCost": "4.444333",
        "EffectiveCost": "4.444333",
        "ContractedCost": "4.444333",
        "ListUnitPrice": "5",
        "ListCost": "6.6665",
        "ResourceId": "i-1",
        "ResourceType": "8xH100 node",
        "SkuId": "p5.48xlarge",
        "AvailabilityZone": "use1-az2",
        "ProviderName": "AWS",
        "ServiceProviderName": "AWS",
        "HostProviderName": "AWS",
        "BillingPeriodStart": "2026-11-01T00:00:00Z",
        "BillingPeriodEnd": "2026-12-01T00:00:00Z",
        "ChargePeriodEnd": "2026-11-01T01:20:00Z",
        "x_UsefulGpuHours": "8",
        "x_LostHoursRecovery": "0.3333",
        "x_LostHoursReplay": "0",
        "x_Interrupted": "true",
        "x_PriceSource": "quote",
        "x_Estimated": "true",
    }
    assert {name: row[name] for name in expected} == expected
    assert json.loads(row["Tags"])["spotd:attempt"] == "2"
    assert json.loads(row["SkuPriceDetails"]) == {"InstanceType": "p5.48xlarge", "GpuCount": 8}


def test_it_keeps_the_rules_and_the_sums() -> None:
    base = NOVEMBER // H
    dedicated = {**SPOT, "capacity": "on_demand"}
    booked = {**SPOT, "capacity": "reserved", "reservation": "cr-1"}
    made = account(
        machine(stretch(base - 5, base + 1.1, 3_333_333), details=SPOT),
        machine(stretch(base, base + 2, 16_000_000), details=dedicated),
        machine(stretch(base, base + 2, 0, prepaid=True), details=booked),
        machine(stretch(base, base + 1), details=dedicated, gpus=0),
        extras=(STORED,),
    )
    parts = list(months(NOVEMBER - 6 * H, NOVEMBER + 3 * H))
    assert parts == [(NOVEMBER - 6 * H, NOVEMBER), (NOVEMBER, NOVEMBER + 3 * H)]
    first = rows_of(replace(made, extras=()), "d0", *parts[0])
    second = rows_of(made, "d0", *parts[1])
    assert problems(COLUMNS, first + second) == []
    total = sum(Decimal(row["BilledCost"]) for row in first + second)
    assert total * 1_000_000 == report_of(made).total_microusd
    categories = [row["PricingCategory"] for row in second]
    assert categories == ["Dynamic", "Standard", "Other", "Standard", "Standard"]
    assert [row["ServiceCategory"] for row in second][-1] == "Storage"
    assert second[2]["CapacityReservationStatus"] == "Used"


def test_a_reconciled_row_is_no_estimate() -> None:
    base = NOVEMBER // H
    part = stretch(base, base + 1, reconciled=True, invoiced_microusd=1_999_999)
    result = rows_of(account(machine(part, details=SPOT)), "d0", NOVEMBER, NOVEMBER + 3 * H)
    message = [result[0][name] for name in ("BilledCost", "x_Estimated", "x_PriceSource")]
    assert message == ["1.999999", "false", "invoice"]
    assert problems(COLUMNS, result) == []


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("BilledCost", "", "BilledCost is null"),
        ("BilledCost", "1e3", "no decimal"),
        ("ChargePeriodStart", "2026-11-01 00:00", "no time in UTC"),
        ("ChargePeriodEnd", "2027-01-01T00:00:00Z", "not within the billing period"),
        ("ChargeCategory", "Use", "none of its values"),
        ("PricingCategory", "Spot", "none of its values"),
        ("ListCost", "7", "ListUnitPrice * PricingQuantity is not ListCost"),
        ("Tags", "[]", "Tags is not a map"),
        ("SkuPriceId", "", "SkuPriceId is null"),
        ("ServiceSubcategory", "Object Storage", "another ServiceCategory"),
        ("CapacityReservationId", "cr-1", "does not go with"),
    ],
)
def test_the_check_sees_a_broken_rule(column: str, value: str, message: str) -> None:
    result = problems(COLUMNS, [{**rows()[0], column: value}])
    assert any(text.startswith("row 1: ") and message in text for text in result), result


def test_the_check_sees_missing_and_strange_columns() -> None:
    columns = [name for name in COLUMNS if name != "ListCost"]
    result = problems([*columns, "Costs", "x_Mine"], [])
    assert result == ["ListCost is missing", "Costs is not a column of FOCUS"]


def test_the_metadata_names_the_version_and_every_column() -> None:
    schema = metadata("d0", NOVEMBER)["Schema"]
    assert isinstance(schema, dict)
    assert (schema["FocusVersion"], schema["CreationDate"]) == ("1.2", "2026-11-01T00:00:00Z")
    types = {item["ColumnName"]: item["DataType"] for item in schema["ColumnDefinition"]}
    assert list(types) == list(COLUMNS)
    assert (types["BilledCost"], types["Tags"]) == ("DECIMAL", "JSON")
    assert (types["ChargePeriodEnd"], types["SkuId"]) == ("DATETIME", "STRING")


def test_months() -> None:
    assert month_of(NOVEMBER) == (NOVEMBER, NOVEMBER + 30 * 24 * H)
    assert list(months(5, 5)) == []


@pytest.mark.req("BUD-07")
def test_the_metadata_says_which_types_of_cost_are_in_it() -> None:
    """Those that a cloud's own budget asks about; what is said of them holds of every row."""
    types = metadata("d0", NOVEMBER)["CostTypes"]
    assert isinstance(types, dict)
    named = {"usage", "tax", "credit", "refund", "discount", "upfront", "recurring", "support"}
    assert set(types) == named
    for row in rows(extras=(STORED,)):
        charge = (row["ChargeCategory"], row["ChargeClass"], row["ChargeFrequency"])
        assert charge == ("Usage", "", "Usage-Based")
        assert row["ContractedCost"] == row["BilledCost"]
