"""Write the ledger as FOCUS rows: the FinOps Open Cost and Usage Specification.

The columns are those of version 1.2, two of them also under their names of 1.3, and spotd's own
with the required prefix (`x_`). There is one row for each part of a segment within one month (UTC),
and one per line item other than machines. Amounts are exact decimals as text: the sums of
BilledCost equal the ledger's to the micro-dollar.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from providers.clouds import CLOUDS
from spotd.domain.units import DAY_US, US_PER_H
from spotd.money.hour_breakdown import Machine, Segment, Span, TimeUse, split_segment
from spotd.money.report import Account, Item, Kind, timed

VERSION = "1.2"
COLUMNS = (
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "CapacityReservationId",
    "CapacityReservationStatus",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargeFrequency",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "CommitmentDiscountCategory",
    "CommitmentDiscountId",
    "CommitmentDiscountName",
    "CommitmentDiscountQuantity",
    "CommitmentDiscountStatus",
    "CommitmentDiscountType",
    "CommitmentDiscountUnit",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedCost",
    "EffectiveCost",
    "InvoiceId",
    "InvoiceIssuerName",
    "ListCost",
    "ListUnitPrice",
    "PricingCategory",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "RegionId",
    "RegionName",
    "AvailabilityZone",
    "ResourceId",
    "ResourceName",
    "ResourceType",
    "ServiceCategory",
    "ServiceName",
    "ServiceSubcategory",
    "SkuId",
    "SkuMeter",
    "SkuPriceDetails",
    "SkuPriceId",
    "Tags",
    "ServiceProviderName",
    "HostProviderName",  # 1.3
    "x_UsefulGpuHours",
    "x_LostHoursRecovery",
    "x_LostHoursReplay",
    "x_Interrupted",
    "x_PriceSource",
    "x_Estimated",
)
_SERVICES = {
    Kind.COMPUTE: ("Compute", "Virtual Machines"),
    Kind.STORAGE: ("Storage", "Object Storage"),
    Kind.EGRESS: ("Networking", "Network Connectivity"),
    Kind.CONTROL: ("Compute", "Virtual Machines"),
}

Row = dict[str, str]  # column -> text; "" is null
# The cost types that a cloud's own budgets include or exclude, and their place in this export.
COST_TYPES = {
    "usage": "ChargeCategory Usage: every row",
    "tax": "not in it: the ledger has prices before tax; an invoice's is in the BilledCost of "
    "machines that were reconciled, where the bill has it by machine",
    "credit": "not in it: ChargeCategory Credit is never written",
    "refund": "not in it: ChargeClass Correction is never written",
    "discount": "not in it, but for what a price says itself: ContractedCost is BilledCost",
    "upfront": "not in it: hours of a reservation cost 0, with PricingCategory Other",
    "recurring": "not in it: ChargeFrequency is always Usage-Based",
    "support": "not in it",
}


def rows_of(account: Account, deployment: str, since_us: int, until_us: int) -> list[Row]:
    """Return the rows of a job in a part of one month.

    `details` of its machines say where they are; extras are those of that time.
    """
    rows: list[Row] = []
    for machine, spans in timed(account):
        for segment in machine.stretches:
            from_us, to_us = segment.within(since_us, until_us)
            if from_us < to_us:
                rows.append(_machine_row(account, machine, segment, spans, from_us, to_us))
    begins = [part.start_us for machine in account.machines for part in machine.stretches]
    start_us = max(since_us, min(begins, default=until_us))
    if start_us < until_us:
        rows += [_extra_row(account, item, start_us, until_us) for item in account.extras]
    for row in rows:
        row["BillingAccountName"] = f"spotd {deployment}"
    return rows


def metadata(deployment: str, created_us: int) -> dict[str, object]:
    """Return the metadata file: the version and the columns."""
    return {
        "DataGenerator": {"DataGenerator": "spotd"},
        "Schema": {
            "SchemaId": f"spotd-{VERSION}-1",
            "FocusVersion": VERSION,
            "DataGeneratorVersion": "1",
            "CreationDate": iso(created_us),
            "ColumnDefinition": [
                {"ColumnName": name, "DataType": _type_of(name)} for name in COLUMNS
            ],
        },
        "Deployment": deployment,
        "CostTypes": COST_TYPES,
        "Estimates": "rows whose x_Estimated is true are by prices and times, not by an invoice",
    }


def _type_of(name: str) -> str:
    if name in ("Tags", "SkuPriceDetails"):
        return "JSON"
    if name.startswith(("BillingPeriod", "ChargePeriod")):
        return "DATETIME"
    decimal = name.endswith(("Cost", "Quantity", "UnitPrice")) or "Hours" in name
    return "DECIMAL" if decimal else "STRING"


def iso(at_us: int) -> str:
    """Format a time as ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(at_us // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def months(start_us: int, end_us: int) -> Iterator[tuple[int, int]]:
    """Split a time span at the starts of months (UTC)."""
    while start_us < end_us:
        _, next_us = month_of(start_us)
        yield start_us, min(next_us, end_us)
        start_us = next_us


def days(start_us: int, end_us: int) -> Iterator[tuple[int, int]]:
    """Split a time span at the starts of days (UTC)."""
    while start_us < end_us:
        next_us = (start_us // DAY_US + 1) * DAY_US
        yield start_us, min(next_us, end_us)
        start_us = next_us


def month_of(at_us: int) -> tuple[int, int]:
    """Return the start and end of the month in UTC."""
    first = datetime.fromtimestamp(at_us // 1_000_000, UTC).replace(
        day=1, hour=0, minute=0, second=0
    )
    after = (first + timedelta(days=32)).replace(day=1)
    return int(first.timestamp()) * 1_000_000, int(after.timestamp()) * 1_000_000


def _blank(account: Account, kind: Kind, from_us: int, to_us: int) -> Row:
    begin_us, end_us = month_of(from_us)
    category, sub = _SERVICES[kind]
    row = dict.fromkeys(COLUMNS, "")
    row |= {
        "BillingCurrency": "USD",
        "BillingPeriodStart": iso(begin_us),
        "BillingPeriodEnd": iso(end_us),
        "ChargeCategory": "Usage",
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodStart": iso(from_us),
        "ChargePeriodEnd": iso(to_us if to_us % 1_000_000 == 0 else to_us + 1_000_000),
        "ServiceCategory": category,
        "ServiceSubcategory": sub,
    }
    tags = {"spotd:job": account.name, "spotd:job_id": account.job_id}
    tags |= {"user": account.user} if account.user else {}
    tags |= {"project": account.project} if account.project else {}
    row["Tags"] = json.dumps(tags)
    return row


def _priced(row: Row, cost: int, unit_price: Decimal, quantity: Decimal, unit: str) -> None:
    """Fill in the prices: the paid cost from the ledger, the list cost as price times quantity."""
    paid = text_of(Decimal(cost) / 1_000_000)
    row |= {
        "BilledCost": paid,
        "EffectiveCost": paid,
        "ContractedCost": paid,
        "ListUnitPrice": text_of(unit_price),
        "ListCost": text_of(unit_price * quantity),
        "PricingQuantity": text_of(quantity),
        "PricingUnit": unit,
    }


def _machine_row(
    account: Account,
    machine: Machine,
    segment: Segment,
    spans: Sequence[Span],
    from_us: int,
    to_us: int,
) -> Row:
    row, labels = _blank(account, Kind.COMPUTE, from_us, to_us), machine.details
    times, costs = split_segment(segment, spans, from_us, to_us)
    quantity = _hours(to_us - from_us)
    rate = segment.list_rate_microusd_per_h or segment.rate_microusd_per_h
    unit_price = Decimal(0) if segment.prepaid else Decimal(rate) / 1_000_000
    _priced(row, sum(costs.values()), unit_price, quantity, "Hours")
    gpus = machine.gpus
    lost = (
        times.get(TimeUse.STARTUP, 0) + times.get(TimeUse.WAITING, 0)
        if machine.generation > 1
        else 0
    )
    consumed = _hours((to_us - from_us) * gpus) if gpus else quantity
    details = {"InstanceType": labels.get("type", ""), **({"GpuCount": gpus} if gpus else {})}
    row |= _names(labels.get("cloud", ""), labels.get("provider", ""))
    row |= {
        "CapacityReservationId": labels.get("reservation", ""),
        "CapacityReservationStatus": "Used" if labels.get("reservation") else "",
        "ChargeDescription": f"{labels.get('what', '')}, attempt {machine.generation}",
        "ConsumedQuantity": text_of(consumed),
        "ConsumedUnit": "GPU-Hours" if gpus else "Hours",
        "PricingCategory": pricing_category(labels.get("capacity", ""), prepaid=segment.prepaid),
        "RegionId": labels.get("region", ""),
        "RegionName": labels.get("region", ""),
        "AvailabilityZone": labels.get("zone", ""),
        "ResourceId": labels.get("instance_id") or machine.node_id,
        "ResourceName": machine.node_id,
        "ResourceType": f"{gpus}x{labels.get('accelerator', '')} node" if gpus else "node",
        "ServiceName": "Virtual machines",
        "SkuId": labels.get("type", ""),
        "SkuMeter": "Machine hours",
        "SkuPriceDetails": json.dumps(details),
        "SkuPriceId": "/".join(labels.get(n, "") for n in ("type", "region", "zone", "capacity")),
        "x_UsefulGpuHours": text_of(_hours(times.get(TimeUse.USEFUL, 0) * gpus)),
        "x_LostHoursRecovery": text_of(_hours(lost)),
        "x_LostHoursReplay": text_of(_hours(times.get(TimeUse.REPLAYED, 0))),
        "x_Interrupted": labels.get("interrupted", "false"),
        "x_PriceSource": "invoice" if segment.reconciled else segment.price_source,
        "x_Estimated": "false" if segment.reconciled else "true",
    }
    tags = json.loads(row["Tags"])
    tags |= {"spotd:attempt": str(machine.generation), "spotd:rank": str(machine.rank)}
    row["Tags"] = json.dumps(tags)
    return row


def pricing_category(capacity: str, *, prepaid: bool) -> str:
    """Return FOCUS's category: spot prices move without an agreement, others are agreed."""
    if prepaid:
        return "Other"  # a reservation that is paid elsewhere
    return "Dynamic" if capacity == "spot" else "Standard"


def _extra_row(account: Account, item: Item, from_us: int, to_us: int) -> Row:
    row = _blank(account, item.kind, from_us, to_us)
    quantity = Decimal(str(round(item.quantity, 9)))
    cost = Decimal(item.cost_microusd) / 1_000_000
    price = (cost / quantity).quantize(Decimal("1e-12")) if quantity else cost
    _priced(row, item.cost_microusd, price, quantity or Decimal(1), item.unit or "Units")
    row |= _names(item.cloud, item.cloud or "spotd")
    row |= {
        "ChargeDescription": item.what,
        "ConsumedQuantity": row["PricingQuantity"],
        "ConsumedUnit": row["PricingUnit"],
        "PricingCategory": "Standard",
        "ResourceId": f"{account.job_id}/{item.kind.value}",
        "ResourceName": f"{account.name} {item.kind.value}",
        "ResourceType": item.kind.value,
        "ServiceName": item.kind.value.capitalize(),
        "SkuId": item.kind.value,
        "SkuMeter": item.unit,
        "SkuPriceId": f"{item.kind.value}/{item.cloud or 'configured'}",
        "x_Interrupted": "false",
        "x_PriceSource": "list" if item.cloud else "configured",
        "x_Estimated": "true",
    }
    return row


def _names(cloud: str, provider: str) -> Mapping[str, str]:
    """Return the owner's columns by the names of 1.2 and 1.3.

    The account's own number is not known here; the provider's configured name takes its place.
    """
    name = CLOUDS[cloud].invoice_name if cloud in CLOUDS else cloud or provider
    columns = ("InvoiceIssuerName", "ProviderName", "PublisherName")
    more = ("ServiceProviderName", "HostProviderName")
    return {"BillingAccountId": provider, **dict.fromkeys((*columns, *more), name)}


def _hours(us: int) -> Decimal:
    return (Decimal(us) / US_PER_H).quantize(Decimal("1e-9"))


def text_of(number: Decimal) -> str:
    """Return a number without an exponent and without trailing zeros."""
    text = f"{number:f}"
    return (text.rstrip("0").rstrip(".") or "0") if "." in text else text
