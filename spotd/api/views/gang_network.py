"""Admission check of gangs: refuse one whose ranks could only communicate over plain IP."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from providers.base import CapacityType, Offer, OfferRequest
from spotd.api.request.request import bad_input
from spotd.domain.job import JobSpec
from spotd.domain.market import Market
from spotd.planner.placement.rank import lacks_network

NAMED = 3  # machines named in a refusal
_ALL = tuple(CapacityType)


def refuse_slow(spec: JobSpec, market: Market) -> None:
    """Raise ApiError (bad input) for a gang when no offer that fits has an interconnect.

    It does not refuse when no offer fits: an offer that is not on sale now may have one.
    """
    wanted = spec.resources
    fitting = [o for o in market.offers if any(want.admits(o) for want in wanted.alternatives)]
    if not fitting or not all(lacks_network(spec, offer) for offer in fitting):
        return
    raise bad_input(
        f"num_nodes is {wanted.num_nodes}, and none of the {len(fitting)} offers that fit has an "
        "interconnect (EFA, GPUDirect, InfiniBand) between its machines",
        "spotd.slow_network: true, if plain IP is good enough for the job; "
        + "; ".join([*_possible_fixes(fitting), _elsewhere(spec, market)]),
    )


def _possible_fixes(fitting: Iterable[Offer]) -> Iterator[str]:
    """Yield the changes that would give an interconnect to machines that fit, cheapest first."""
    offers_by_need: dict[str, list[Offer]] = {}
    for offer in sorted(fitting, key=lambda offer: (offer.price_microusd_per_h, offer.key)):
        if offer.joins_with:
            offers_by_need.setdefault(offer.joins_with, []).append(offer)
    for need, offers in offers_by_need.items():
        types = [*dict.fromkeys(f"{offer.instance_type} of {offer.provider}" for offer in offers)]
        others = f" and {len(types) - NAMED} more" if len(types) > NAMED else ""
        yield f"{', '.join(types[:NAMED])}{others}: with {need}"


def _elsewhere(spec: JobSpec, market: Market) -> str:
    """Return which machines on sale have an interconnect.

    Prefers those with the accelerator that the job requests.
    """
    connected = [offer for offer in market.offers if offer.interconnect]
    requests = [
        OfferRequest(want.accelerator, capacity_types=_ALL) for want in spec.resources.alternatives
    ]
    matching = [offer for offer in connected if any(request.admits(offer) for request in requests)]
    if not connected:
        return "no configured provider now sells a machine that has one"
    return f"these have one: {_names_text(matching or connected)}"


def _names_text(offers: Iterable[Offer]) -> str:
    names = dict.fromkeys(
        f"{offer.instance_type} of {offer.provider} as {offer.capacity_type.value}"
        for offer in sorted(offers, key=lambda offer: (offer.price_microusd_per_h, offer.key))
    )
    others = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join([*names][:NAMED]) + others
