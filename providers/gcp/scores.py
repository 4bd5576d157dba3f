"""Google's capacity advice: how likely a Spot machine is to be obtained in a zone.

Reference: compute v1, advice.capacity. Not every client of Google's has it, nor knows every machine
type; where it is not told, there is no score.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from providers.base import Offer
from providers.gcp.clients import Clients

MOST_POOLS = 40  # one call each


def read_scores(clients: Clients, offers: Sequence[Offer]) -> dict[str, int]:
    """Score by offer key, of the pools whose machines have the most accelerators. Raises
    ProviderError."""
    pools = sorted(offers, key=lambda offer: (-offer.accelerator_count, offer.key))[:MOST_POOLS]
    # The first one alone: a right that is missing, and an API that hangs, cost one call.
    told = [
        score
        for some in (pools[:1], pools[1:])
        for score in clients.side_by_side(some, partial(_ask, clients))
    ]
    return {offer.key: score for offer, score in zip(pools, told, strict=True) if score}


def _ask(clients: Clients, offer: Offer) -> int:
    wanted = {
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
        "Advice", "capacity", region=offer.region, capacity_advice_request_resource=wanted
    )
    return score_of(answer)


def score_of(answer: Any) -> int:
    """The best recommendation's obtainability, from 0 to 1, as 1 to 10; 0 where there is none."""
    shares = [one.scores.obtainability for one in answer.recommendations if one.scores]
    return max(1, min(10, round(max(shares) * 10))) if shares else 0
