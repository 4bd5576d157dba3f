"""Azure's spot placement scores: the likelihood that a request for one machine succeeds, in a zone
or in a region's own pool.

Uses plain requests: the SDK for it is a separate preview. Reference:
Microsoft.Compute/locations/placementScores/spot/generate, api-version 2025-06-05.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from providers.azure.clients import Clients
from providers.azure.launch import zone_name
from providers.base import Offer
from providers.market_signals import most_accelerators

API = "2025-06-05"
MAX_SIZES = 10
SIZES_PER_QUERY, REGIONS_PER_QUERY = 5, 8  # maximum of Azure
# Azure reports three levels. Their numbers are our choice; only their order is used.
SCORES = {"high": 9, "medium": 5, "low": 1}


def read_scores(clients: Clients, offers: Sequence[Offer]) -> dict[str, int]:
    """Return scores by offer key, for the sizes with the most accelerators. Raises
    ProviderError."""
    queried = most_accelerators(offers, MAX_SIZES)
    score_by_pool: dict[tuple[str, str], int] = {}
    for query in _queries(queried, sorted({offer.region for offer in offers})):
        for row in clients.placement_scores(API, query).get("placementScores") or ():
            zone = zone_name(str(row["region"]), str(row.get("availabilityZone") or ""))
            score_by_pool[str(row["sku"]), zone] = SCORES.get(str(row.get("score")).lower(), 0)
    scores = {
        offer.key: score_by_pool.get((offer.instance_type, offer.zone), 0) for offer in offers
    }
    return {key: score for key, score in scores.items() if score}


def _queries(sizes: Sequence[str], regions: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    for zonal in (True, False):
        for size_start in range(0, len(sizes), SIZES_PER_QUERY):
            for region_start in range(0, len(regions), REGIONS_PER_QUERY):
                yield {
                    "desiredLocations": [*regions[region_start : region_start + REGIONS_PER_QUERY]],
                    "desiredSizes": [
                        {"sku": size} for size in sizes[size_start : size_start + SIZES_PER_QUERY]
                    ],
                    "desiredCount": 1,
                    "availabilityZones": zonal,
                }
