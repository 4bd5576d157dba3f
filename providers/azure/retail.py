"""Azure's retail prices: what a row of them is the price of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

API = "2023-01-01-preview"
SIZES_A_QUESTION = 15  # so that the address stays below 2,000 characters
_OTHERS = ("Windows", " Win ", "Cloud Services", "Dedicated")


@dataclass(frozen=True)
class Prices:
    """Micro-USD per hour by size, of one region."""

    spot: Mapping[str, int] = field(default_factory=dict)
    listed: Mapping[str, int] = field(default_factory=dict)


def questions(region: str, sizes: Sequence[str]) -> list[dict[str, str]]:
    """The parameters of the questions for these sizes."""
    found = []
    for start in range(0, len(sizes), SIZES_A_QUESTION):
        some = sizes[start : start + SIZES_A_QUESTION]
        named = " or ".join(f"armSkuName eq '{size}'" for size in some)
        text = (
            f"serviceName eq 'Virtual Machines' and armRegionName eq '{region}' "
            f"and priceType eq 'Consumption' and ({named})"
        )
        found.append({"api-version": API, "$filter": text})
    return found


def read_prices(rows: Iterable[Mapping[str, Any]], now: datetime) -> Prices:
    """The prices of Linux in effect at `now`, spot and on demand."""
    spot: dict[str, tuple[datetime, int]] = {}
    listed: dict[str, tuple[datetime, int]] = {}
    for row in rows:
        meter = f"{row.get('meterName', '')}|{row.get('skuName', '')}"
        if not _is_plain(row, meter):
            continue
        since = _moment(row.get("effectiveStartDate"))
        microusd = _microusd(row.get("retailPrice"))
        if since > now or not microusd:
            continue
        side = spot if any(part.endswith(" Spot") for part in meter.split("|")) else listed
        size = str(row.get("armSkuName") or "")
        if size and (size not in side or side[size][0] < since):
            side[size] = (since, microusd)
    return Prices(
        {size: microusd for size, (_, microusd) in spot.items()},
        {size: microusd for size, (_, microusd) in listed.items()},
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
