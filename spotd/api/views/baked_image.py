"""What a job that names a baked image is told of it."""

from __future__ import annotations

from collections.abc import Mapping

from spotd.api.request.request import ApiRequest, bad_input
from spotd.domain.images import baked_of, image_for
from spotd.domain.job import JobSpec
from spotd.domain.market import Market


def check_baked(call: ApiRequest, spec: JobSpec) -> list[str]:
    """Whether the baked image that a job names is known, and what is to be said of where it is not.
    Raises ApiError (bad input) for one that nobody baked."""
    name = baked_of(spec.image_id)
    if not name:
        return []
    rows = [row for row in call.backing.store.images() if row.name == name]
    good = [row for row in rows if row.good]
    if good:
        places = ", ".join(sorted({f"{row.provider}/{row.region or '*'}" for row in good}))
        return [f"image {name} is in {places}; machines elsewhere start without it and run setup"]
    bakes = [job for job in call.backing.store.jobs(finished=False) if job.spec.bake == name]
    if bakes:
        return [f"image {name} is being baked by {bakes[0].name}: until it is there, setup runs"]
    text = f"resources.image_id: no image {name!r} was baked"
    raise bad_input(text, "spotctl image ls, or spotctl image bake FILE --name " + name)


def image_of_offer(spec: JobSpec, market: Market) -> Mapping[str, str]:
    """Offer key -> the id of the baked image that a machine of it starts from."""
    name = baked_of(spec.image_id)
    found = {o.key: image_for(name, o, market.images) for o in market.offers} if name else {}
    return {key: image.image_id for key, image in found.items() if image is not None}
