"""Routes about baked images: bake, list, remove."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from providers.base import OfferRequest
from providers.cloud_facts import alternatives
from providers.clouds import CLOUDS
from providers.images import monthly_prices
from spotd.api.request.request import ApiRequest, bad_input, conflict, not_found
from spotd.api.routes.jobs import parse_job, submit_parsed
from spotd.api.views.resources import iso
from spotd.domain.fast_replace import changed
from spotd.domain.images import PREFIX, check_name
from spotd.domain.job import Job
from spotd.money.units import usd
from spotd.store.images import ImageRow

_MAX_NAME = 63  # characters in the name of a job


def bake_image(call: ApiRequest) -> dict[str, Any]:
    """Submit a bake: a job that runs `setup` on one machine, from which an image is made. `image`
    is the image's name; `cloud`, `region` and `instance_type` replace those of the file."""
    parsed = parse_job(call, call.texts("secrets"), bake=True)
    name = call.text("image") or parsed.spec.name.lower()
    try:
        check_name(name)
    except ValueError as error:
        raise bad_input(f"name: {error}", "spotctl image bake FILE --name torch-2-9") from None
    spec = changed(
        parsed.spec,
        name=_job_name(name, call),
        bake=name,
        run="",
        alternatives=_places(call, parsed.spec.resources.alternatives),
        num_nodes=1,
        candidates=1,
        fast_network=False,
        keep_on_failure_s=0.0,
        recover_on_exit_codes=(),
    )
    return submit_parsed(call, replace(parsed, spec=spec))


def _job_name(image: str, call: ApiRequest) -> str:
    """Return the name of the bake job, which includes the place so that bakes do not collide."""
    place = "-".join(filter(None, (call.text("cloud"), call.text("region"))))
    return "-".join(filter(None, ("bake", image, place)))[:_MAX_NAME].strip("-.")


def _places(call: ApiRequest, wanted: Iterable[OfferRequest]) -> tuple[OfferRequest, ...]:
    """Return the machine requests of the bake, in clouds that make images.

    Raises ApiError (bad input).
    """
    image_makers = call.context.clouds.image_makers()
    if not image_makers:
        message = "no configured cloud can make machine images"
        raise bad_input(message, f"bake in {alternatives([*CLOUDS])}: spotctl init")
    cloud, region, instance_type = (
        call.text("cloud"),
        call.text("region"),
        call.text("instance_type"),
    )
    if cloud and cloud not in image_makers and cloud not in image_makers.values():
        raise bad_input(
            f"cloud: {cloud} cannot make machine images",
            f"one of {', '.join(sorted(image_makers))}",
        )
    requests: dict[OfferRequest, None] = {}
    for want in wanted:
        moved = replace(want, cloud=cloud or want.cloud, region=region, zone="")
        placed = moved if cloud or region else want
        if instance_type:
            placed = OfferRequest(
                instance_type=instance_type,
                cloud=placed.cloud,
                region=placed.region,
                zone=placed.zone,
                capacity_types=placed.capacity_types,
            )
        # In other clouds the machine would cost money without producing an image.
        clouds = [placed.cloud] if placed.cloud else sorted(image_makers)
        image_clouds = [
            name for name in clouds if name in image_makers or name in image_makers.values()
        ]
        requests |= dict.fromkeys(replace(placed, cloud=name) for name in image_clouds)
    if not requests:
        message = "resources: none of the clouds in the file can make machine images"
        raise bad_input(message, f"--infra with one of {', '.join(sorted(image_makers))}")
    return tuple(requests)


def list_images(call: ApiRequest) -> dict[str, Any]:
    """Every image that may cost money: its place, its source, its size, and its highest monthly
    cost (`usd_per_month_most`; null where no figure is known)."""
    store = call.context.store
    rows, jobs = store.images.rows(), store.jobs.rows(finished=False)
    clouds, configured = call.context.clouds.image_makers(), call.context.clouds.configured_images()
    items = [_image_data(row, clouds, _users(row, jobs, configured)) for row in rows]
    prices = [item["usd_per_month_most"] for item in items]
    return {
        "kind": "ImageList",
        "items": items,
        "usd_per_month_most": sum(price for price in prices if price is not None),
        "unpriced": prices.count(None),
    }


def remove_images(call: ApiRequest) -> dict[str, Any]:
    """Delete every image of that name, or the one with that id; with `cloud` and `region` only
    there. Refused while a job uses one, unless `force` is set."""
    name, force = call.path["name"], call.query.get("force", "") == "1"
    cloud, region = call.query.get("cloud", ""), call.query.get("region", "")
    store, now_us = call.context.store, call.now_us
    selected = [
        row
        for row in store.images.rows()
        if name in (row.name, row.image_id, row.vendor_name)
        and cloud in ("", row.provider)
        and region in ("", row.region)
    ]
    if not selected:
        place = " there" if cloud or region else ""
        raise not_found(f"there is no image {name!r}{place}", "spotctl image ls")
    jobs, configured = store.jobs.rows(finished=False), call.context.clouds.configured_images()
    for row in selected:
        _check_unused(row, jobs, configured, force=force)
    store.images.request_removal([row.node_id for row in selected], now_us)
    return {
        "kind": "ImagesRemoved",
        "name": name,
        "items": [f"{row.provider}/{row.region or '*'}/{row.vendor_name}" for row in selected],
        "count": len(selected),
    }


def _check_unused(
    row: ImageRow, jobs: Iterable[Job], configured: Mapping[str, str], *, force: bool
) -> None:
    """Raise ApiError (conflict) while the image is being made, or is in use without `force`."""
    bake_job = next((job for job in jobs if job.id == row.job_id and job.spec.program.bake), None)
    if bake_job is not None and not row.made_at_us and not row.half_made:
        message = f"image {row.name} is being made by job {bake_job.name}"
        raise conflict(message, f"spotctl cancel {bake_job.name}")
    users = _users(row, jobs, configured)
    if users and not force:
        raise conflict(
            f"image {row.name} is used by {', '.join(users)}",
            "spotctl image rm --force: their next machines start from the plain image",
        )


def _users(row: ImageRow, jobs: Iterable[Job], configured: Mapping[str, str]) -> list[str]:
    """Return the unfinished jobs that name the image or its id.

    Also the place in the configuration that names the id.
    """
    names = {f"{PREFIX}{row.name}", row.image_id} - {""}
    users = [job.name for job in jobs if job.spec.resources.image_id in names]
    return [*users, *([configured[row.image_id]] if row.image_id in configured else ())]


def _image_data(row: ImageRow, clouds: Mapping[str, str], users: list[str]) -> dict[str, Any]:
    price = monthly_prices().get(clouds.get(row.provider, ""))
    usd_per_month = None if price is None or not row.size_gib else usd(price * row.size_gib)
    return {
        "name": row.name,
        "state": _state(row),
        "provider": row.provider,
        "region": row.region,
        "image_id": row.image_id,
        "vendor_name": row.vendor_name,
        "setup": row.setup,
        "base": row.base,
        "version": row.version,
        "job": row.job_id,
        "size_gib": row.size_gib or None,
        "usd_per_month_most": usd_per_month,
        "asked_at": iso(row.asked_at_us),
        "made_at": iso(row.made_at_us),
        "used_by": users,
    }


def _state(row: ImageRow) -> str:
    if row.unwanted_at_us or row.half_made:
        return "removing"
    return "available" if row.made_at_us else "making"
