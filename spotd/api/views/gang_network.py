"""Gangs whose ranks could talk to each other over plain IP only are refused before they begin."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from providers.base import CapacityType, Offer, OfferRequest
from spotd.api.request.request import bad_input
from spotd.domain.job import JobSpec
from spotd.domain.market import Market
from spotd.planner.placement.rank import lacks_network

NAMED = 3  # machines that a refusal names
_ALL = tuple(CapacityType)


def refuse_slow(spec: JobSpec, market: Market) -> None:
    """Raises ApiError (bad input) for a gang when offers fit, and none of them has an interconnect
    between its machines. What is not on sale now may have one when it is."""
    fitting = [o for o in market.offers if any(want.admits(o) for want in spec.alternatives)]
    if not fitting or not all(lacks_network(spec, offer) for offer in fitting):
        return
    raise bad_input(
        f"num_nodes is {spec.num_nodes}, and none of the {len(fitting)} offers that fit has an "
        "interconnect (EFA, GPUDirect, InfiniBand) between its machines",
        "spotd.slow_network: true, if plain IP is good enough for the job; "
        + "; ".join([*_mended(fitting), _elsewhere(spec, market)]),
    )


def _mended(fitting: Iterable[Offer]) -> Iterator[str]:
    """What would give one to machines that fit, the cheapest first."""
    needs: dict[str, list[Offer]] = {}
    for offer in sorted(fitting, key=lambda one: (one.price_microusd_per_h, one.key)):
        if offer.joins_with:
            needs.setdefault(offer.joins_with, []).append(offer)
    for what, offers in needs.items():
        kinds = [*dict.fromkeys(f"{one.instance_type} of {one.provider}" for one in offers)]
        more = f" and {len(kinds) - NAMED} more" if len(kinds) > NAMED else ""
        yield f"{', '.join(kinds[:NAMED])}{more}: with {what}"


def _elsewhere(spec: JobSpec, market: Market) -> str:
    """Which machines on sale have one: of the kind that the job asks for, if there are any."""
    joined = [offer for offer in market.offers if offer.interconnect]
    kinds = [OfferRequest(want.accelerator, capacity_types=_ALL) for want in spec.alternatives]
    alike = [offer for offer in joined if any(kind.admits(offer) for kind in kinds)]
    if not joined:
        return "no provider of the configuration sells a machine that has one now"
    return f"these have one: {_named(alike or joined)}"


def _named(offers: Iterable[Offer]) -> str:
    names = dict.fromkeys(
        f"{offer.instance_type} of {offer.provider} as {offer.capacity_type.value}"
        for offer in sorted(offers, key=lambda one: (one.price_microusd_per_h, one.key))
    )
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join([*names][:NAMED]) + more
