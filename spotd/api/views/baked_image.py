"""Checks of the baked image that a job names, and the image id of each offer."""

from __future__ import annotations

from collections.abc import Mapping

from spotd.api.request.request import ApiRequest, bad_input
from spotd.domain.images import baked_of, image_for
from spotd.domain.job import JobSpec
from spotd.domain.market import Market


def check_baked(call: ApiRequest, spec: JobSpec) -> list[str]:
    """Return warnings about the baked image that a job names.

    Raises ApiError (bad input) for an image that was never baked.
    """
    name = baked_of(spec.resources.image_id)
    if not name:
        return []
    rows = [row for row in call.context.store.images.rows() if row.name == name]
    available = [row for row in rows if row.good]
    if available:
        places = ", ".join(sorted({f"{row.provider}/{row.region or '*'}" for row in available}))
        return [f"image {name} is in {places}; machines elsewhere start without it and run setup"]
    bakes = [
        job for job in call.context.store.jobs.rows(finished=False) if job.spec.program.bake == name
    ]
    if bakes:
        return [f"image {name} is being baked by {bakes[0].name}: until it is there, setup runs"]
    message = f"resources.image_id: no image {name!r} was baked"
    raise bad_input(message, "spotctl image ls, or spotctl image bake FILE --name " + name)


def image_of_offer(spec: JobSpec, market: Market) -> Mapping[str, str]:
    """Return offer key -> the id of the baked image that a machine of that offer starts from."""
    name = baked_of(spec.resources.image_id)
    images = {o.key: image_for(name, o, market.images) for o in market.offers} if name else {}
    return {key: image.image_id for key, image in images.items() if image is not None}
