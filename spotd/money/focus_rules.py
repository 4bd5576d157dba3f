"""Check FOCUS rows by the rules of version 1.2 for the columns that spotd writes.

Checks nullability, format, allowed values, and columns that must agree. This is a subset of the
specification's own validator, which needs a newer Python version.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation

from spotd.money.focus import COLUMNS, Row

MANDATORY = frozenset(
    {
        "BilledCost",
        "BillingAccountId",
        "BillingAccountName",
        "BillingCurrency",
        "BillingPeriodStart",
        "BillingPeriodEnd",
        "ChargeCategory",
        "ChargeClass",
        "ChargeDescription",
        "ChargePeriodStart",
        "ChargePeriodEnd",
        "ContractedCost",
        "EffectiveCost",
        "InvoiceIssuerName",
        "ListCost",
        "PricingQuantity",
        "PricingUnit",
        "PricingCategory",
        "ProviderName",
        "PublisherName",
        "ServiceCategory",
        "ServiceName",
    }
)
NOT_NULL = MANDATORY - {"ChargeClass"} | {"ChargeFrequency", "ServiceSubcategory"}
_OF_USAGE = ("ConsumedQuantity", "ConsumedUnit", "ListUnitPrice", "SkuId", "SkuPriceId")
_DECIMALS = (
    "BilledCost",
    "ContractedCost",
    "EffectiveCost",
    "ListCost",
    "ListUnitPrice",
    "PricingQuantity",
    "ConsumedQuantity",
)
_TIMES = ("BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_ALLOWED = {
    "BillingCurrency": {"USD"},
    "ChargeCategory": {"Usage", "Purchase", "Tax", "Credit", "Adjustment"},
    "ChargeClass": {"", "Correction"},
    "ChargeFrequency": {"One-Time", "Recurring", "Usage-Based"},
    "PricingCategory": {"Standard", "Dynamic", "Committed", "Other"},
    "CapacityReservationStatus": {"", "Used", "Unused"},
    "x_Interrupted": {"true", "false"},
    "x_Estimated": {"true", "false"},
}
_PARENTS = {
    "Virtual Machines": "Compute",
    "Object Storage": "Storage",
    "Network Connectivity": "Networking",
}


def problems(columns: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """Return the errors, each with its column and row number, from 1."""
    errors = [f"{name} is missing" for name in sorted(MANDATORY - set(columns))]
    known = set(COLUMNS)
    errors += [f"{c} is not a column of FOCUS" for c in columns if c not in known and c[:2] != "x_"]
    for number, row in enumerate(rows, 1):
        errors += [f"row {number}: {text}" for text in _of_row(row)]
    return errors


def _of_row(row: Row) -> Iterator[str]:
    usage = _OF_USAGE if row.get("ChargeCategory") == "Usage" else ()
    yield from (f"{name} is null" for name in (*sorted(NOT_NULL), *usage) if not row.get(name))
    yield from _forms(row)
    if bool(row.get("CapacityReservationId")) != bool(row.get("CapacityReservationStatus")):
        yield "CapacityReservationStatus does not go with CapacityReservationId"
    if _PARENTS.get(row.get("ServiceSubcategory", "")) != row.get("ServiceCategory"):
        yield "ServiceSubcategory is of another ServiceCategory"
    yield from _agreement(row)


def _forms(row: Row) -> Iterator[str]:
    for name, values in _ALLOWED.items():
        if row.get(name, "") not in values:
            yield f"{name} is {row.get(name)!r}, none of its values"
    for name in _DECIMALS:
        if row.get(name) and not _NUMBER.fullmatch(row[name]):
            yield f"{name} is {row[name]!r}, no decimal"
    for name in _TIMES:
        if row.get(name) and not _TIME.fullmatch(row[name]):
            yield f"{name} is {row[name]!r}, no time in UTC"
    for name in ("Tags", "SkuPriceDetails"):
        if row.get(name) and not _is_map(row[name]):
            yield f"{name} is not a map"


def _agreement(row: Row) -> Iterator[str]:
    try:
        price, quantity, cost = (
            Decimal(row[name]) for name in ("ListUnitPrice", "PricingQuantity", "ListCost")
        )
    except (KeyError, InvalidOperation):
        return
    if price < 0:
        yield "ListUnitPrice is below 0"
    if price * quantity != cost:
        yield "ListUnitPrice * PricingQuantity is not ListCost"
    starts = [row.get(name, "") for name in ("BillingPeriodStart", "ChargePeriodStart")]
    ends = [row.get(name, "") for name in ("ChargePeriodEnd", "BillingPeriodEnd")]
    if not starts[0] <= starts[1] < ends[0] <= ends[1]:
        yield "the charge period is empty, or not within the billing period"


def _is_map(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
