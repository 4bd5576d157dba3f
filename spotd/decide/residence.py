"""Places that are out of the question for a job: by the country in which a machine stands, and by
the one whose law reaches the company that runs it. They are two things: Frankfurt is in the EU,
and an American company is an American one there."""

from __future__ import annotations

from providers.base import Offer
from spotd.model import JobSpec, Market


def out_of_place(spec: JobSpec, offer: Offer, market: Market) -> str:
    """Why the job may not run there; "" where it may. Where nothing is known it may not."""
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
