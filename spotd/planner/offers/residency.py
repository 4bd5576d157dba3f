"""Exclude places by country, by operator, and by reach of the job's store.

The country of the machine and the home country of its operator are separate conditions: Frankfurt
is in the EU, but an American company there is still American. A store that is a folder excludes
machines that cannot mount it.
"""

from __future__ import annotations

from providers.base import Offer
from spotd.domain.job import JobSpec
from spotd.domain.market import Market
from spotd.planner.core.shard_stores import HERE, store_of


def out_of_place(spec: JobSpec, offer: Offer, market: Market) -> str:
    """Why the job may not run there; "" where it may. Where nothing is known it may not."""
    if afar := _unmounted(spec, offer, market):
        return afar
    preferences = spec.preferences
    if preferences.residency:
        country = market.geography.countries.get(f"{offer.cloud}/{offer.region}")
        if not country:
            return f"the country of {offer.region} is not known (residency)"
        if country not in preferences.residency:
            return f"it is in {country}, outside the job's residency"
    if preferences.not_operated_from:
        home = market.geography.operators.get(offer.cloud)
        if not home:
            return (
                f"the home country of the operator of {offer.provider} is not known "
                "(not_operated_from)"
            )
        if home in preferences.not_operated_from:
            return f"its operator is based in {home} (not_operated_from)"
    return ""


def _unmounted(spec: JobSpec, offer: Offer, market: Market) -> str:
    """Return why the job's folder is not mounted there, or "".

    A network folder exists in its own place. A bucket, a local folder for local processes, and a
    folder of unknown place are reachable.
    """
    store = spec.checkpoint.store
    if offer.local or not store.startswith("file:"):
        return ""
    place = store_of(spec, market)
    if place.cloud in ("", HERE):
        return ""
    there = place.beside(offer) and place.zone in ("", offer.zone)
    where = "/".join(filter(None, place))
    return "" if there else f"its checkpoint.store is a folder of {where}, not mounted elsewhere"
