"""EC2's spot placement scores: the likelihood that a request for one machine succeeds in a zone.

EC2 documents that the score of a single type is always low. Zones of one type can still be
compared, and the scores are used for nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

from providers.aws.clients import Clients
from providers.base import Offer
from providers.market_signals import most_accelerators

# EC2 limits how many different queries an account may make per day, so always make the same few.
MAX_TYPES = 10
REGIONS_PER_CALL = 10  # maximum of EC2
MAX_ROWS = 1000


def read_scores(clients: Clients, offers: Sequence[Offer]) -> dict[str, int]:
    """Return scores by offer key, for the types with the most accelerators. Raises
    ProviderError."""
    score_by_zone: dict[tuple[str, str], int] = {}
    for instance_type in most_accelerators(offers, MAX_TYPES):
        regions = sorted({offer.region for offer in offers if offer.instance_type == instance_type})
        for start in range(0, len(regions), REGIONS_PER_CALL):
            batch = regions[start : start + REGIONS_PER_CALL]
            rows = clients.pages(
                batch[0],
                "get_spot_placement_scores",
                "SpotPlacementScores",
                InstanceTypes=[instance_type],
                TargetCapacity=1,
                TargetCapacityUnitType="units",
                SingleAvailabilityZone=True,
                RegionNames=batch,
                MaxResults=MAX_ROWS,
            )
            for row in rows:
                score_by_zone[instance_type, row["AvailabilityZoneId"]] = int(row["Score"])
    scores = {
        offer.key: score_by_zone.get((offer.instance_type, offer.zone_id), 0) for offer in offers
    }
    return {key: score for key, score in scores.items() if 1 <= score <= 10}
