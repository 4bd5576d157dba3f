"""Azure's spot placement scores: how likely a request for one machine is to be fulfilled, in a zone
or in a region's own pool. Asked for by plain requests: the SDK for it is a preview of its own.

Reference: Microsoft.Compute/locations/placementScores/spot/generate, api-version 2025-06-05.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from providers.azure.clients import Clients
from providers.azure.launch import zone_name
from providers.base import Offer

API = "2025-06-05"
MOST_SIZES = 10
SIZES_A_QUESTION, REGIONS_A_QUESTION = 5, 8  # the most that Azure takes
# Azure says one of three words; where they lie between 1 and 10 is ours to say, and only their
# order is made use of.
SCORES = {"high": 9, "medium": 5, "low": 1}


def read_scores(clients: Clients, offers: Sequence[Offer]) -> dict[str, int]:
    """Score by offer key, of the sizes with the most accelerators. Raises ProviderError."""
    sizes = {offer.instance_type: offer.accelerator_count for offer in offers}
    asked = sorted(sizes, key=lambda size: (-sizes[size], size))[:MOST_SIZES]
    found: dict[tuple[str, str], int] = {}
    for question in _questions(asked, sorted({offer.region for offer in offers})):
        for row in clients.placement_scores(API, question).get("placementScores") or ():
            zone = zone_name(str(row["region"]), str(row.get("availabilityZone") or ""))
            found[str(row["sku"]), zone] = SCORES.get(str(row.get("score")).lower(), 0)
    scores = {offer.key: found.get((offer.instance_type, offer.zone), 0) for offer in offers}
    return {key: score for key, score in scores.items() if score}


def _questions(sizes: Sequence[str], regions: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    for zonal in (True, False):
        for at in range(0, len(sizes), SIZES_A_QUESTION):
            for start in range(0, len(regions), REGIONS_A_QUESTION):
                yield {
                    "desiredLocations": [*regions[start : start + REGIONS_A_QUESTION]],
                    "desiredSizes": [{"sku": size} for size in sizes[at : at + SIZES_A_QUESTION]],
                    "desiredCount": 1,
                    "availabilityZones": zonal,
                }
