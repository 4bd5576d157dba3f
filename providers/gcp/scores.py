"""Google's capacity advice: the likelihood of obtaining a Spot machine in a zone.

Reference: compute v1, advice.capacity. Not every project has access, and not every machine type is
known; then there is no score.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from providers.base import Offer
from providers.gcp.clients import Clients

MAX_POOLS = 40  # one call each


def read_scores(clients: Clients, offers: Sequence[Offer]) -> dict[str, int]:
    """Return scores by offer key, for the pools with the most accelerators. Raises
    ProviderError."""
    pools = sorted(offers, key=lambda offer: (-offer.accelerator_count, offer.key))[:MAX_POOLS]
    # The first one alone: with a missing permission or a hanging API, only one call is wasted.
    scores = [
        score
        for batch in (pools[:1], pools[1:])
        for score in clients.map_parallel(batch, partial(_fetch_score, clients))
    ]
    return {offer.key: score for offer, score in zip(pools, scores, strict=True) if score}


def _fetch_score(clients: Clients, offer: Offer) -> int:
    request = {
        "size": 1,
        "instance_properties": {"scheduling": {"provisioning_model": "SPOT"}},
        "instance_flexibility_policy": {
            "instance_selections": {"one": {"machine_types": [offer.instance_type]}}
        },
        "distribution_policy": {
            "target_shape": "ANY_SINGLE_ZONE",
            "zones": [{"zone": f"zones/{offer.zone}"}],
        },
    }
    answer = clients.call(
        "Advice", "capacity", region=offer.region, capacity_advice_request_resource=request
    )
    return score_of(answer)


def score_of(answer: Any) -> int:
    """Convert the best recommendation's obtainability, from 0 to 1, to 1 to 10; 0 without one."""
    probabilities = [
        recommendation.scores.obtainability
        for recommendation in answer.recommendations
        if recommendation.scores
    ]
    return max(1, min(10, round(max(probabilities) * 10))) if probabilities else 0
