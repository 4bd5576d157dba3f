"""Query and parse Azure's retail prices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

API = "2023-01-01-preview"
SIZES_PER_QUERY = 15  # keeps the URL below 2,000 characters
_OTHERS = ("Windows", " Win ", "Cloud Services", "Dedicated")


@dataclass(frozen=True)
class Prices:
    """Micro-USD per hour by size, in one region."""

    spot: Mapping[str, int] = field(default_factory=dict)
    list_price: Mapping[str, int] = field(default_factory=dict)


def price_queries(region: str, sizes: Sequence[str]) -> list[dict[str, str]]:
    """Return the parameters of the queries for these sizes."""
    queries = []
    for start in range(0, len(sizes), SIZES_PER_QUERY):
        batch = sizes[start : start + SIZES_PER_QUERY]
        names = " or ".join(f"armSkuName eq '{size}'" for size in batch)
        filter_ = (
            f"serviceName eq 'Virtual Machines' and armRegionName eq '{region}' "
            f"and priceType eq 'Consumption' and ({names})"
        )
        queries.append({"api-version": API, "$filter": filter_})
    return queries


def read_prices(rows: Iterable[Mapping[str, Any]], now: datetime) -> Prices:
    """Return the Linux prices in effect at `now`, spot and on demand."""
    spot: dict[str, tuple[datetime, int]] = {}
    on_demand: dict[str, tuple[datetime, int]] = {}
    for row in rows:
        meter = f"{row.get('meterName', '')}|{row.get('skuName', '')}"
        if not _is_plain(row, meter):
            continue
        since = _moment(row.get("effectiveStartDate"))
        microusd = _microusd(row.get("retailPrice"))
        if since > now or not microusd:
            continue
        prices = spot if any(part.endswith(" Spot") for part in meter.split("|")) else on_demand
        size = str(row.get("armSkuName") or "")
        if size and (size not in prices or prices[size][0] < since):
            prices[size] = (since, microusd)
    return Prices(
        {size: microusd for size, (_, microusd) in spot.items()},
        {size: microusd for size, (_, microusd) in on_demand.items()},
    )


def _is_plain(row: Mapping[str, Any], meter: str) -> bool:
    product = f"{row.get('productName', '')} "
    return (
        row.get("type") == "Consumption"
        and row.get("unitOfMeasure") == "1 Hour"
        and row.get("currencyCode") == "USD"
        and "Low Priority" not in meter
        and not any(word in product for word in _OTHERS)
    )


def _moment(text: Any) -> datetime:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _microusd(usd: Any) -> int:
    return round(usd * 1_000_000) if isinstance(usd, int | float) and usd > 0 else 0
