"""Eviction rates of Spot machines by size and region over 28 days, from Resource Graph's table
SpotResources, which reports bands.

Table, type and properties are from Azure's page on Spot machines and from published queries; they
have not been verified on an account. Uses a plain request: the SDK would be one more dependency.
"""

from __future__ import annotations

from collections.abc import Sequence

from providers.azure.clients import Clients
from providers.azure.scores import MAX_SIZES
from providers.base import Offer
from providers.market_signals import most_accelerators

API = "2022-10-01"
BANDS = {"0-5": 5, "5-10": 10, "10-15": 15, "15-20": 20, "20+": 100}  # percent


def read_evictions(clients: Clients, offers: Sequence[Offer]) -> dict[str, int]:
    """Return the upper end of the band by offer key, for the sizes with the most accelerators.
    Raises ProviderError."""
    queried = most_accelerators(offers, MAX_SIZES)
    answer = clients.graph(API, eviction_query(queried, sorted({offer.region for offer in offers})))
    rate_by_pool = {
        (str(row.get("skuName")).lower(), str(row.get("location")).lower()): BANDS.get(
            str(row.get("evictionRate")), 0
        )
        for row in answer.get("data") or ()
    }
    rates = {
        offer.key: rate_by_pool.get((offer.instance_type.lower(), offer.region.lower()), 0)
        for offer in offers
    }
    return {key: rate for key, rate in rates.items() if rate}


def eviction_query(sizes: Sequence[str], regions: Sequence[str]) -> str:
    """Return the query in Resource Graph's language. Names of sizes and regions contain no
    quotes."""
    return (
        "SpotResources"
        " | where type =~ 'microsoft.compute/skuspotevictionrate/location'"
        f" | where sku.name in~ ({_quoted_list(sizes)}) and location in~ ({_quoted_list(regions)})"
        " | project skuName = tostring(sku.name), location,"
        " evictionRate = tostring(properties.evictionRate)"
    )


def _quoted_list(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
