"""Check whether the prices that a cloud reports are plausible.

An error in a catalogue must not make a machine look like a bargain, nor a bill look small. Real
spot prices lie between a tenth of the on-demand price and that price. A lower price counts as the
on-demand price; a higher one counts as the maximum, and nothing is launched there. No machine costs
more than $10,000 an hour; such a list price would only make savings look large, and counts as
unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from providers.base import CONFIGURED, PREPAID, Offer
from providers.dollars import format_usd

LEAST_SHARE = 0.1  # of the list price
MOST_SHARE = 5
NO_DISCOUNT = 0.95  # spot at this share of the on-demand price is none
MOST_MICROUSD_PER_H = 10_000_000_000
STALE_S = 3600.0  # without an answer, before a cloud's last prices no longer count

# `Offer.price_source` of what is not the cloud's own word.
ASSUMED = "assumed"  # the on-demand price, for want of one that can be believed
DOUBTED = "doubted"  # the most that is believed: nothing is launched at it


@dataclass(frozen=True)
class ImplausiblePrice:
    """One implausible value that a cloud reported for an offer."""

    offer_key: str
    text: str


def believed(offers: Iterable[Offer]) -> tuple[list[Offer], list[ImplausiblePrice]]:
    """Return the offers with plausible prices, and the implausible prices.

    An offer without any plausible price is left out: machines there keep their previous price.
    """
    credible: list[Offer] = []
    doubts: list[ImplausiblePrice] = []
    for listed in offers:
        offer = listed
        if not 0 <= listed.list_microusd_per_h <= MOST_MICROUSD_PER_H:
            offer = replace(listed, list_microusd_per_h=0)
            doubts.append(_doubt(listed, "list price", listed.list_microusd_per_h))
        held = _held(offer)
        if held != offer:
            doubts.append(_doubt(listed, "price", listed.price_microusd_per_h))
        if held is not None:
            credible.append(held)
    return credible, doubts


def _held(offer: Offer) -> Offer | None:
    """Return the offer at a price within bounds; None if no price is known."""
    if offer.price_source in (PREPAID, CONFIGURED):
        return offer  # whoever runs spotd says so, and no catalogue
    price, listed = offer.price_microusd_per_h, offer.list_microusd_per_h
    most = min(MOST_SHARE * listed or MOST_MICROUSD_PER_H, MOST_MICROUSD_PER_H)
    if price <= 0 or price < LEAST_SHARE * listed:
        return _assumed(offer)
    if price > most:
        return replace(offer, price_microusd_per_h=most, price_source=DOUBTED)
    return offer


def _assumed(offer: Offer) -> Offer | None:
    listed = offer.list_microusd_per_h
    if not listed:
        return None
    return replace(offer, price_microusd_per_h=listed, price_source=ASSUMED)


def stale(offers: Sequence[Offer]) -> list[Offer]:
    """Return the offers to use when prices have not been confirmed for long.

    The on-demand price counts if it is higher. An offer without a list price is not launched.
    """
    return [
        offer
        if offer.price_source in (PREPAID, CONFIGURED)
        else replace(offer, price_source=DOUBTED)
        if not offer.list_microusd_per_h
        else replace(
            offer,
            price_microusd_per_h=max(offer.price_microusd_per_h, offer.list_microusd_per_h),
            price_source=offer.price_source if offer.price_source == DOUBTED else ASSUMED,
        )
        for offer in offers
    ]


def _doubt(offer: Offer, what: str, microusd: int) -> ImplausiblePrice:
    usd = microusd / 1e6
    return ImplausiblePrice(offer.key, f"{offer.key}: a {what} of {format_usd(usd)}/h")
