"""Places that are out of the question for a job: by the country in which a machine stands, and by
the one whose law reaches the company that runs it. They are two things: Frankfurt is in the EU,
and an American company is an American one there. And by a folder that is its store: machines
elsewhere cannot mount it."""

from __future__ import annotations

from providers.base import Offer
from spotd.decide.carriage import HERE, store_of
from spotd.model import JobSpec, Market


def out_of_place(spec: JobSpec, offer: Offer, market: Market) -> str:
    """Why the job may not run there; "" where it may. Where nothing is known it may not."""
    if afar := _unmounted(spec, offer, market):
        return afar
    wishes = spec.wishes
    if wishes.residency:
        country = market.countries.get(f"{offer.cloud}/{offer.region}")
        if not country:
            return f"nobody knows in which country {offer.region} stands (residency)"
        if country not in wishes.residency:
            return f"it stands in {country}, outside its residency"
    if wishes.not_operated_from:
        home = market.operators.get(offer.cloud)
        if not home:
            return f"nobody knows where who runs {offer.provider} is at home (not_operated_from)"
        if home in wishes.not_operated_from:
            return f"who runs it is at home in {home} (not_operated_from)"
    return ""


def _unmounted(spec: JobSpec, offer: Offer, market: Market) -> str:
    """A folder is where its network file system is. A bucket is to be had from anywhere, and so is
    a folder of this box for its own processes, and one of which nobody says where it is."""
    store = spec.checkpoint.store
    if offer.local or not store.startswith("file:"):
        return ""
    place = store_of(spec, market)
    if place.cloud in ("", HERE):
        return ""
    there = place.beside(offer) and place.zone in ("", offer.zone)
    where = "/".join(filter(None, place))
    return "" if there else f"its checkpoint.store is a folder of {where}, not mounted elsewhere"
