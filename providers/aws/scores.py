"""EC2's spot placement scores: how likely a request for one machine is to be fulfilled in a zone.

EC2 says that the score of a single type is always low; zones of one type can be held against each
other all the same, and no more is made of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from providers.aws.clients import Clients
from providers.base import Offer

# EC2 limits how many different questions an account may ask in a day: always the same few.
MOST_TYPES = 10
REGIONS_A_QUESTION = 10  # the most that EC2 takes
MOST_ROWS = 1000


def read_scores(clients: Clients, offers: Sequence[Offer]) -> dict[str, int]:
    """Score by offer key, of the types with the most accelerators. Raises ProviderError."""
    kinds = {offer.instance_type: offer.accelerator_count for offer in offers}
    asked = sorted(kinds, key=lambda kind: (-kinds[kind], kind))[:MOST_TYPES]
    found: dict[tuple[str, str], int] = {}
    for kind in asked:
        regions = sorted({offer.region for offer in offers if offer.instance_type == kind})
        for start in range(0, len(regions), REGIONS_A_QUESTION):
            some = regions[start : start + REGIONS_A_QUESTION]
            rows = clients.pages(
                some[0],
                "get_spot_placement_scores",
                "SpotPlacementScores",
                InstanceTypes=[kind],
                TargetCapacity=1,
                TargetCapacityUnitType="units",
                SingleAvailabilityZone=True,
                RegionNames=some,
                MaxResults=MOST_ROWS,
            )
            for row in rows:
                found[kind, row["AvailabilityZoneId"]] = int(row["Score"])
    scores = {offer.key: found.get((offer.instance_type, offer.zone_id), 0) for offer in offers}
    return {key: score for key, score in scores.items() if 1 <= score <= 10}
